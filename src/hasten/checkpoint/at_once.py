"""Work on several files by several threads."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from hasten.facts.machine import usable_cores

Item = TypeVar("Item")
Made = TypeVar("Made")


def at_once(work: Callable[[Item], Made], items: Iterable[Item], threads: int) -> list[Made]:
    """What the work makes of each item, in their order, by so many threads. Raises what the first failing one does,
    once those that had begun have ended."""
    items = list(items)
    if threads == 1 or len(items) < 2:
        return [work(each) for each in items]
    with ThreadPoolExecutor(min(threads, len(items))) as workers:
        futures = [workers.submit(work, each) for each in items]
        try:
            return [each.result() for each in futures]
        except BaseException:
            workers.shutdown(cancel_futures=True)
            raise


def most_threads() -> int:
    """That work on files faster than fewer of them: one more than this process has processors, as one always waits for
    the disk; at most 4, as a checkpoint has few files and a disk few heads."""
    return min(usable_cores() + 1, 4)
