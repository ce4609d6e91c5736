import random
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hasten.data.order.randomness import (
    derived,
    mixed,
    random_state,
    reseed,
    sample_seed,
    set_random_state,
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


@given(state=words)
def test_one_number_and_an_array_of_numbers_are_mixed_alike(state):
    assert mixed(np.array([state], dtype=np.uint64)).tolist() == [mixed(state)]


@pytest.mark.trap(39)
@given(seed=words, epoch=st.integers(-1, 2**40), indices=st.sets(words, min_size=2, max_size=50))
def test_no_two_samples_of_an_epoch_share_a_seed(seed, epoch, indices):
    assert len({sample_seed(seed, epoch, index) for index in indices}) == len(indices)


@pytest.mark.trap(39)
def test_a_million_seeds_of_neighbouring_runs_epochs_and_samples_all_differ():
    indices = np.arange(2_000, dtype=np.uint64)
    found = [sample_seed(seed, epoch, indices) for seed in range(25) for epoch in range(-1, 19)]
    assert len(np.unique(np.concatenate(found))) == 1_000_000


@pytest.mark.trap(39)
@given(seed=words, epoch=st.integers(0, 1000), index=st.integers(0, 10**9))
def test_the_same_sample_draws_something_new_in_each_epoch_and_each_run(seed, epoch, index):
    streams = set()
    for parts in [(seed, epoch, index), (seed, epoch + 1, index), ((seed + 1) % 2**64, epoch, index)]:
        reseed(sample_seed(*parts))
        streams.add(draws())
    assert len(streams) == 3


def test_seed_epoch_and_index_cannot_stand_in_for_each_other():
    assert (
        len({sample_seed(*parts) for parts in [(1, 2, 3), (1, 3, 2), (2, 1, 3), (3, 2, 1), (2, 3, 1), (3, 1, 2)]}) == 6
    )


@given(number=words)
def test_the_same_number_starts_all_three_generators_alike_whatever_was_drawn_before(number):
    reseed(number)
    first = draws()
    torch.randn(()), np.random.randn(), random.gauss(0, 1)  # each of which keeps a second normal number back
    reseed(number)
    assert draws() == first


def test_samples_that_meet_in_one_generator_differ_in_the_others():
    low, high = derived(1) & 0xFFFFFFFF, derived(2) >> 32 << 32
    reseed(low | high)
    first = draws()
    reseed(low | (high ^ 1 << 40))
    second = draws()
    assert first[0] == second[0]  # torch keeps the lower 32 bits
    assert first[2] != second[2]
    assert first[4] != second[4]


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


@pytest.mark.gpu
def test_an_accelerator_that_is_named_is_put_back_too():
    device = torch.device("cuda")
    with undisturbed(device):
        wanted = torch.rand(3, device=device)
    assert torch.equal(torch.rand(3, device=device), wanted)


def test_the_host_among_the_devices_changes_nothing():
    with undisturbed(torch.device("cpu")):
        wanted = draws()
    assert draws() == wanted


def test_a_state_can_be_gone_back_to_more_than_once():
    state = random_state()
    wanted = draws()
    for _ in range(2):
        set_random_state(state)
        assert draws() == wanted


@given(moves=st.lists(st.sampled_from(["draw", "normal", "seed", "back", "nothing", "theirs"]), max_size=12))
def test_a_state_is_taken_as_it_is_whatever_was_drawn_before(moves):
    """NumPy's and Python's are read in whole only when they have moved."""
    kept = [random_state()]
    for move in moves:
        if move == "draw":
            np.random.rand()
            random.random()
        elif move == "normal":  # every second one comes from beside the generator's memory
            np.random.randn()
            random.gauss(0.0, 1.0)
        elif move == "seed":
            np.random.seed(3)
            random.seed(3)
        elif move == "back":
            set_random_state(kept[len(kept) // 2])
        elif move == "theirs":
            np.random.default_rng(1).normal()
        kept.append(random_state())
        wanted = np.random.get_state(legacy=False)
        found = kept[-1]["numpy"]
        assert found["state"]["key"].tolist() == wanted["state"]["key"].tolist()
        assert found["state"]["pos"] == wanted["state"]["pos"]
        assert (found["has_gauss"], found["gauss"]) == (wanted["has_gauss"], wanted["gauss"])
        assert kept[-1]["python"] == random.getstate()


def test_a_spare_number_that_is_put_back_behind_the_same_words_is_seen():
    random.seed(1)
    random.gauss(0.0, 1.0)
    with_spare = random.getstate()
    random.gauss(0.0, 1.0)
    assert random_state()["python"] == random.getstate()
    random.setstate(with_spare)
    assert random_state()["python"] == with_spare


def test_a_state_that_has_not_moved_is_not_read_again():
    reseed(1)
    first, second = random_state(), random_state()
    assert first["numpy"] is second["numpy"]
    assert first["python"] is second["python"]


def test_a_generator_that_the_user_has_put_in_numpys_place_is_read_too():
    before = np.random.get_bit_generator()
    try:
        np.random.set_bit_generator(np.random.PCG64(3))
        state = random_state()
        first = np.random.rand()
        set_random_state(state)
        assert np.random.rand() == first
    finally:
        np.random.set_bit_generator(before)
