"""The order of samples in shards: shuffled in blocks, and a pure function of position."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hasten.data.shards.shard_order import ShardOrder

COUNTS = st.lists(st.integers(0, 40), min_size=1, max_size=12)
SEEDS = st.integers(0, 2**63 - 1)


def order_of(counts: list[int], buffer: int = 8, seed: int = 0, shuffle: bool = True) -> ShardOrder:
    return ShardOrder(np.array(counts, dtype=np.int64), buffer, seed, shuffle)


def whole(order: ShardOrder, epoch: int = 0) -> np.ndarray:
    return order.indices(epoch, 0, order.count)


@pytest.mark.trap(40)
@given(counts=COUNTS, buffer=st.integers(1, 500), seed=SEEDS, epoch=st.integers(0, 2**40), shuffle=st.booleans())
def test_every_epoch_visits_every_sample_once(counts, buffer, seed, epoch, shuffle):
    found = whole(order_of(counts, buffer, seed, shuffle), epoch)
    assert found.dtype == np.int64
    assert np.array_equal(np.sort(found), np.arange(sum(counts)))


@pytest.mark.trap(39)
def test_another_epoch_or_seed_is_another_order_of_shards_and_within_them():
    counts = [50] * 20
    orders = [whole(order_of(counts, seed=seed), epoch) for seed, epoch in [(0, 0), (0, 1), (1, 0)]]
    for first in range(3):
        for second in range(first):
            assert (orders[first] == orders[second]).mean() < 0.05
            assert (orders[first] // 50 == orders[second] // 50).mean() < 0.3


def test_an_order_is_the_same_on_every_machine_and_in_every_version():
    assert whole(order_of([4, 3, 5], buffer=5, seed=1), 2).tolist() == [4, 5, 1, 6, 0, 9, 2, 7, 3, 8, 10, 11]
