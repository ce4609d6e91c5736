from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hasten.data.order.sample_order import CHUNK, Order

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
