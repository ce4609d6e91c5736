"""In which order an epoch visits its samples: a pure function of (seed, epoch, position), readable at any position.

Positions are computed a chunk of 65,536 at a time, and the last chunk is stored: a batch usually costs one slice.

* One chunk or less: the positions are sorted by a 64-bit hash of (seed, epoch, position). The hash is one to one, so
  there are no ties, and every order is equally likely.
* More: a Feistel network. The position's bits are split in two halves, which in turn are exclusive-ored with a keyed
  hash of the other half. Each of these rounds can be undone, so the whole is one to one. Where it leads beyond the last
  sample it is applied again until it does not ("cycle walking"). It needs wide halves to be uniform.

Sources: Luby and Rackoff, "How to construct pseudorandom permutations from pseudorandom functions", 1988; Black and
Rogaway, "Ciphers with arbitrary finite domains", 2002; inside the rounds Appleby's MurmurHash3, the 32-bit finalizer.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from itertools import pairwise
from typing import Protocol

import numpy as np

from hasten.data.order.randomness import derived, mixed

CHUNK = 1 << 16
ROUNDS = 8
ORDER = int.from_bytes(b"order", "big")  # keeps the order's random numbers apart from those of the samples


class SampleOrder(Protocol):
    count: int

    def indices(self, epoch: int, start: int, stop: int) -> np.ndarray: ...


class Chunks:
    """Positions of an epoch that are computed a chunk at a time; the last chunk is stored. size: positions of a chunk.
    chunk: (epoch, number) -> the samples at the positions of that chunk (int64)."""

    def __init__(self, size: int, chunk: Callable[[int, int], np.ndarray]) -> None:
        self._size, self._compute = size, chunk
        self._stored: tuple[int, int] | None = None  # epoch and number of the chunk below
        self._chunk = np.empty(0, dtype=np.int64)

    def between(self, epoch: int, start: int, stop: int) -> np.ndarray:
        """int64, shape (stop - start,), read-only."""
        size = self._size
        first, last = start // size, max(stop - 1, start) // size
        if first == last:
            if self._stored != (epoch, first):
                self._chunk, self._stored = self._compute(epoch, first), (epoch, first)
                self._chunk.setflags(write=False)  # slices of it are handed out
            return self._chunk[start - first * size : stop - first * size]
        cuts = [start, *range((first + 1) * size, stop, size), stop]
        found = np.concatenate([self.between(epoch, *ends) for ends in pairwise(cuts)])
        found.setflags(write=False)
        return found


class Order:
    """The order of `count` samples, newly shuffled in each epoch; without `shuffle`, as the data set has them.

    indices(epoch, start, stop): which samples stand at positions start to stop (exclusive): int64, shape
        (stop - start,), read-only.
    """

    def __init__(self, count: int, seed: int, shuffle: bool) -> None:
        self.count = count
        self.indices = Chunks(CHUNK, partial(_chunk, count, seed, shuffle)).between


def _chunk(count: int, seed: int, shuffle: bool, epoch: int, number: int) -> np.ndarray:
    positions = np.arange(number * CHUNK, min((number + 1) * CHUNK, count))
    if not shuffle:
        return positions
    key = derived(seed, ORDER, epoch)
    return sorted_by_hash(count, key) if count <= CHUNK else walked(positions, count, key)


def sorted_by_hash(count: int, key: int) -> np.ndarray:
    """The numbers below `count` (int64), sorted by their hash under `key`."""
    return np.argsort(mixed(np.arange(count, dtype=np.uint64) ^ np.uint64(key)))


def walked(positions: np.ndarray, count: int, key: int) -> np.ndarray:
    """Where a keyed permutation of the numbers below `count` leads `positions`: both int64, of the same shape."""
    bits = max((count - 1).bit_length(), 2)
    rounds = _rounds(bits, key)
    found = _feistel(positions, bits, rounds)
    beyond = np.flatnonzero(found >= count)
    while beyond.size:
        found[beyond] = again = _feistel(found[beyond], bits, rounds)
        beyond = beyond[again >= count]
    return found


def _feistel(values: np.ndarray, bits: int, rounds: tuple[np.ndarray, ...]) -> np.ndarray:
    right_bits = bits // 2
    halves = [values >> right_bits, values & ((1 << right_bits) - 1)]
    for turn, hashed in enumerate(rounds):
        changed = turn % 2
        # No index is beyond a table's end. "clip" only keeps take() from looking first, into a copy.
        halves[changed] ^= hashed.take(halves[1 - changed], mode="clip")
    return (halves[0] << right_bits) | halves[1]


@lru_cache(maxsize=2)  # of one epoch after the other
def _rounds(bits: int, key: int) -> tuple[np.ndarray, ...]:
    """For each round the keyed hash of every value that a half can have (int64): of 8,192 for fifty million samples."""
    keys = (mixed(np.arange(ROUNDS, dtype=np.uint64) ^ np.uint64(key)) >> np.uint64(32)).astype(np.uint32)
    widths = (bits - bits // 2, bits // 2)
    found: list[np.ndarray] = []
    for turn, round_key in enumerate(keys):
        changed, other = widths[turn % 2], widths[1 - turn % 2]
        hashed = _hashed(np.arange(1 << other, dtype=np.uint32) ^ round_key)
        found.append((hashed & np.uint32((1 << changed) - 1)).astype(np.int64))
    return tuple(found)


def _hashed(values: np.ndarray) -> np.ndarray:
    values = (values ^ (values >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    values = (values ^ (values >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    return values ^ (values >> np.uint32(16))
