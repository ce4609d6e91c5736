"""The order of samples that lie in shards: shuffled within a stated buffer, and still a pure function of position.

A whole shuffle would seek for every sample. So the shards are put into an order that is new in each epoch, and the
samples, shard after shard in that order, are cut into blocks of `buffer` samples, each of which is shuffled.

It is weaker than a whole shuffle: samples from shards that do not follow each other cannot meet in a batch of that
epoch. So `hasten pack` shuffles all samples once when it writes them.
"""

from __future__ import annotations

import numpy as np

from hasten.data.order.randomness import derived
from hasten.data.order.sample_order import Chunks, sorted_by_hash

_SHARDS = int.from_bytes(b"shards", "big")  # keeps these random numbers apart from all others of a run
_BLOCKS = int.from_bytes(b"blocks", "big")


class ShardOrder:
    """The order of all samples of shards; without `shuffle`, as they were packed. counts: int64, shape (shards,): how
    many samples each holds. Sample 0 is the first of the first shard. buffer: samples of a block, at least 1."""

    def __init__(self, counts: np.ndarray, buffer: int, seed: int, shuffle: bool) -> None:
        self.count = int(counts.sum())
        self._counts, self._firsts = counts, np.cumsum(counts) - counts
        self._buffer, self._seed, self._shuffle = buffer, seed, shuffle
        self._epoch: int | None = None
        self._shards = np.empty(0, dtype=np.int64)  # their order in that epoch
        self._ends = np.empty(0, dtype=np.int64)  # for each of them in that order, the position behind its last sample
        self._blocks = Chunks(buffer, self._block)

    def indices(self, epoch: int, start: int, stop: int) -> np.ndarray:
        """Which samples stand at positions start to stop (exclusive): int64, shape (stop - start,), read-only."""
        if self._shuffle:
            return self._blocks.between(epoch, start, stop)
        found = np.arange(start, stop)
        found.setflags(write=False)
        return found

    def _block(self, epoch: int, number: int) -> np.ndarray:
        if self._epoch != epoch:
            self._shards = sorted_by_hash(len(self._counts), derived(self._seed, _SHARDS, epoch))
            self._ends, self._epoch = np.cumsum(self._counts[self._shards]), epoch
        start = number * self._buffer
        size = min(self._buffer, self.count - start)
        positions = start + sorted_by_hash(size, derived(self._seed, _BLOCKS, epoch, number))
        turn = np.searchsorted(self._ends, positions, side="right")
        shards = self._shards[turn]
        return self._firsts[shards] + positions - (self._ends[turn] - self._counts[shards])
