"""The order of samples that lie in shards: shuffled within a stated buffer, and still a pure function of position.

A whole shuffle asks for samples from everywhere. On a disk that turns, or over a network, every one of them is a seek.
So the shuffle is done in two steps, each of which can be entered at any position without a replay:

1. The shards are put into an order that is new in each epoch, every one of them equally likely.
2. The samples, shard after shard in that order, are cut into blocks of `buffer` samples, and each block is shuffled.

While a block is read, all reads fall into a few megabytes that lie together. A batch costs what its block costs: a sort
of `buffer` numbers, whatever the number of samples; and the block is kept for the next batch.

What it is worth against a whole shuffle: less, unless the packing helped. Two samples of one block can meet in a batch
far more often than two of a whole shuffle (batch / buffer against batch / samples), and two from shards that do not
follow each other cannot meet in that epoch at all. Were the shards sorted by class, a batch would hold a few classes.
`hasten pack` therefore shuffles all samples once when it writes them: what lies together is then a random part of the
whole, and a batch is a fair sample. What remains is that much the same neighbours share a batch's block in every epoch.
A buffer as large as the data set is a whole shuffle, whose sort is done once an epoch.

webdataset shuffles by a buffer that is filled from a stream: the same range, and no entrance in the middle.
"""

from __future__ import annotations

import numpy as np

from hasten.data.order.randomness import derived
from hasten.data.order.sample_order import sorted_by_hash

_SHARDS = int.from_bytes(b"shards", "big")  # keeps these random numbers apart from all others of a run
_BLOCKS = int.from_bytes(b"blocks", "big")


class ShardOrder:
    """The order of all samples of shards; without `shuffle`, as they were packed.

    counts: int64, shape (shards,): how many samples each holds. Sample 0 is the first of the first shard.
    buffer: samples of a block, at least 1.
    """

    def __init__(self, counts: np.ndarray, buffer: int, seed: int, shuffle: bool) -> None:
        self.count = int(counts.sum())
        self._counts, self._firsts = counts, np.cumsum(counts) - counts
        self._buffer, self._seed, self._shuffle = buffer, seed, shuffle
        self._epoch: int | None = None
        self._shards = np.empty(0, dtype=np.int64)  # their order in that epoch
        self._ends = np.empty(0, dtype=np.int64)  # for each of them in that order, the position behind its last sample
        self._kept: tuple[int, int] | None = None  # epoch and number of the block below
        self._block = np.empty(0, dtype=np.int64)

    def indices(self, epoch: int, start: int, stop: int) -> np.ndarray:
        """Which samples stand at positions start to stop (exclusive): int64, shape (stop - start,), read-only."""
        if not self._shuffle:
            found = np.arange(start, stop)
        elif (first := start // self._buffer) == (stop - 1) // self._buffer:
            return self._block_of(epoch, first)[start - first * self._buffer : stop - first * self._buffer]
        else:
            pieces = [
                self._block_of(epoch, number)[max(start - number * self._buffer, 0) : stop - number * self._buffer]
                for number in range(first, -(-stop // self._buffer))
            ]
            found = np.concatenate(pieces) if pieces else np.empty(0, dtype=np.int64)
        found.setflags(write=False)
        return found

    def _block_of(self, epoch: int, number: int) -> np.ndarray:
        if self._kept != (epoch, number):
            self._block, self._kept = self._made(epoch, number), (epoch, number)
            self._block.setflags(write=False)  # slices of it are given out
        return self._block

    def _made(self, epoch: int, number: int) -> np.ndarray:
        if self._epoch != epoch:
            self._shards = sorted_by_hash(len(self._counts), derived(self._seed, _SHARDS, epoch))
            self._ends, self._epoch = np.cumsum(self._counts[self._shards]), epoch
        start = number * self._buffer
        size = min(self._buffer, self.count - start)
        positions = start + sorted_by_hash(size, derived(self._seed, _BLOCKS, epoch, number))
        turn = np.searchsorted(self._ends, positions, side="right")
        shards = self._shards[turn]
        return self._firsts[shards] + positions - (self._ends[turn] - self._counts[shards])
