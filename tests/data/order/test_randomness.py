import random
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hasten.data.order.randomness import (
    mixed,
    reseed,
    sample_seed,
    undisturbed,
)

words = st.integers(0, 2**64 - 1)


def draws() -> tuple[float, ...]:
    return (
        torch.rand(()).item(),
        torch.randn(()).item(),
        float(np.random.rand()),
        float(np.random.randn()),
        random.random(),
        random.gauss(0, 1),
    )


def test_the_hash_is_splitmix64():
    # The first outputs of the reference implementation (Vigna, prng.di.unimi.it/splitmix64.c) for the state 0.
    gamma = 0x9E3779B97F4A7C15
    states = [0, gamma, 2 * gamma % 2**64]
    assert [mixed(state) for state in states] == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]


@pytest.mark.trap(39)
def test_the_seeds_of_neighbouring_runs_epochs_and_samples_all_differ():
    indices = np.arange(200, dtype=np.uint64)
    found = [sample_seed(seed, epoch, indices) for seed in range(25) for epoch in range(-1, 19)]
    assert len(np.unique(np.concatenate(found))) == 100_000


@given(number=words)
def test_the_same_number_starts_all_three_generators_alike_whatever_was_drawn_before(number):
    reseed(number)
    first = draws()
    torch.randn(()), np.random.randn(), random.gauss(0, 1)  # each of which keeps a second normal number back
    reseed(number)
    assert draws() == first


@pytest.mark.parametrize("end", [None, KeyError("in the middle")])
def test_what_is_drawn_inside_leaves_the_process_as_it_was(end):
    reseed(5)
    draws()
    before = torch.get_rng_state(), np.random.get_state(), random.getstate()
    with pytest.raises(KeyError) if end else nullcontext(), undisturbed():
        reseed(7)
        draws()
        if end:
            raise end
    found = draws()
    torch.set_rng_state(before[0])
    np.random.set_state(before[1])
    random.setstate(before[2])
    assert found == draws()
