import random
from itertools import permutations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hasten.data.order.sample_order import CHUNK, Order, SampledOrder
from hasten.errors import DataFailed, UserCodeFailed

seeds = st.integers(0, 2**63 - 1)
epochs = st.integers(0, 2**40)


def whole(count: int, seed: int = 0, epoch: int = 0) -> np.ndarray:
    return Order(count, seed, shuffle=True).indices(epoch, 0, count)


@pytest.mark.trap(40)
@given(count=st.integers(1, 3000), seed=seeds, epoch=epochs)
def test_every_epoch_visits_every_sample_once(count, seed, epoch):
    assert np.array_equal(np.sort(whole(count, seed, epoch)), np.arange(count))


@given(data=st.data(), count=st.sampled_from([1, 2, 7, 1000, 2 * CHUNK + 5]), seed=seeds)
def test_any_part_of_an_epoch_is_what_the_whole_has_there(data, count, seed):
    start = data.draw(st.integers(0, count))
    stop = data.draw(st.integers(start, min(count, start + 2 * CHUNK)))
    part = Order(count, seed, shuffle=True).indices(3, start, stop)
    assert np.array_equal(part, whole(count, seed, 3)[start:stop])


def test_an_order_is_the_same_on_every_machine_and_in_every_version():
    assert whole(8, seed=1, epoch=2).tolist() == [0, 7, 6, 3, 1, 5, 4, 2]
    assert Order(1_000_000, 1, shuffle=True).indices(2, 500_000, 500_004).tolist() == [915831, 473741, 306138, 9530]


def chi_square(observed: np.ndarray, expected: float) -> float:
    """In standard deviations from its own mean, for many degrees of freedom."""
    freedom = observed.size - 1
    return float((((observed - expected) ** 2 / expected).sum() - freedom) / np.sqrt(2 * freedom))


def test_all_orders_of_a_few_samples_are_equally_frequent():
    epochs, count = 6_000, 4
    shuffled = Order(count, 11, shuffle=True)
    seen = dict.fromkeys(permutations(range(count)), 0)
    for epoch in range(epochs):
        seen[tuple(shuffled.indices(epoch, 0, count).tolist())] += 1
    assert abs(chi_square(np.array(list(seen.values())), epochs / len(seen))) < 4


class Halves:
    """A sampler that draws from all three global generators and skips half of the samples."""

    def __init__(self, generator=None):
        self.generator = generator

    def __len__(self):
        return 20

    def __iter__(self):
        yield from torch.randperm(10, generator=self.generator).tolist()
        yield from np.random.permutation(10).tolist()[:5]
        yield from random.sample(range(10), 5)


def test_a_sampler_of_the_users_draws_the_same_in_the_same_epoch_and_disturbs_nothing():
    generator = torch.Generator().manual_seed(3)
    before = generator.get_state(), torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()
    first = SampledOrder(Halves(generator), 20, seed=1)
    second = SampledOrder(Halves(generator), 20, seed=1)
    epoch_four = first.indices(4, 0, 20)
    assert not np.array_equal(first.indices(5, 0, 20), epoch_four)
    assert np.array_equal(second.indices(4, 3, 9), epoch_four[3:9])
    assert not np.array_equal(SampledOrder(Halves(generator), 20, seed=2).indices(4, 0, 20), epoch_four)
    after = generator.get_state(), torch.get_rng_state(), np.random.get_state()[1], random.getstate()
    assert torch.equal(before[0], after[0])
    assert torch.equal(before[1], after[1])
    assert np.array_equal(before[2], after[2])
    assert before[3] == after[3]


def test_a_sampler_whose_length_is_wrong_is_an_error():
    with pytest.raises(DataFailed, match="its length says"):
        SampledOrder(Halves(), 21, seed=1).indices(0, 0, 5)


class Drawing:
    """A sampler that yields what it was given, and says so much of its length."""

    def __init__(self, drawn, length=None):
        self.drawn, self.length = drawn, len(drawn) if length is None else length

    def __len__(self):
        return self.length

    def __iter__(self):
        return iter(self.drawn)


def test_a_sampler_that_raises_is_the_users_code_and_names_its_line():
    def failing():
        yield 0
        raise KeyError("no weights")

    with pytest.raises(UserCodeFailed, match="the sampler raised in epoch 0: KeyError: 'no weights'") as caught:
        SampledOrder(Drawing(failing(), 2), 2, seed=1).indices(0, 0, 2)
    assert "in failing" in caught.value.where
    assert isinstance(caught.value.__cause__, KeyError)
