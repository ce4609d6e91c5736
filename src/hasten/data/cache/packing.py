"""All samples of a data set, packed one after the other, and read by as many threads as there are cores where they can.

Reading them is most of what a cache costs, and a run waits for it. Threads share the process's random generators, so
they read only what is known to draw from none (known_steady.py), which a decoder of pictures is; that none was drawn
from is seen once for all samples, at the end. Everything else is read alone, and seen sample by sample.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from hasten.data.cache.repeated_reading import SteadyReader, Unreadable
from hasten.data.cache.sample_format import Packed
from hasten.data.sources.known_steady import steady_reason
from hasten.data.workers.hang_limit import Patience
from hasten.data.workers.loader_threads import Threads
from hasten.facts.machine import usable_cores

TOGETHER = 4  # samples that a thread reads before it is asked again
AHEAD = 1  # such groups, of each thread
MOST_READERS = 8  # one thread writes what they read, and more would wait for it


def readers(dataset: Any) -> int:
    """How many threads read it."""
    return 1 if steady_reason(dataset) is None else min(usable_cores(), MOST_READERS)


def packed_in_order(reader: SteadyReader) -> Iterator[Packed | Unreadable]:
    """Inside `undisturbed()`; Unreadable for a sample that cannot be read, where another may stand in for it.

    Raises what reader.packed raises, and Hang when no thread answers for longer than a loader waits.
    """
    count = len(reader.dataset)

    def read(first: int) -> list[Packed | Unreadable]:
        group = range(first, min(first + TOGETHER, count))
        return [_or_unreadable(reader.packed_unwatched, index) for index in group]

    if readers(reader.dataset) == 1:
        yield from (_or_unreadable(reader.packed, index) for index in range(count))
        return
    threads = Threads(read, readers(reader.dataset), AHEAD, lambda: Patience().limit(0.0))
    try:
        with reader.watched():
            for group in threads.answers(range(0, count, TOGETHER)):
                yield from group
    finally:
        threads.close()


def _or_unreadable(packed: Callable[[int], Packed], index: int) -> Packed | Unreadable:
    try:
        return packed(index)
    except Unreadable as bad:
        return bad
