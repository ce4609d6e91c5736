"""The digest of a file, taken while it is written and again when it is read.

SHA-256, so that a digest can be checked without this package: `sha256sum` gives the same. Hashing is slower than
writing into the system's cache, so it runs in a thread beside it, and beside the wait for the disk.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from hasten.checkpoint.direct_io import read_bytes, read_from_disk
from hasten.checkpoint.files import NewFile
from hasten.facts.machine import usable_cores

PIECE_BYTES = 1 << 20  # one that was just written is still in the processor's cache when it is hashed


@dataclass(frozen=True, slots=True)
class Digest:
    """What a file must be: its size in bytes, and the SHA-256 of its content as 64 hexadecimal digits."""

    bytes: int
    sha256: str


def write_digested(path: Path, parts: Iterable[bytes | memoryview]) -> Digest:
    """Make a new file of these parts, which stay as they are meanwhile, and force it to the disk.

    Raises StorageFailed; the file may then be there in part.
    """
    digest, size = hashlib.sha256(), 0
    with ThreadPoolExecutor(max_workers=1) as beside:
        file = NewFile.past_the_cache(path)
        try:
            for piece in _pieces(parts):
                beside.submit(digest.update, piece)
                file.write(piece)
                size += len(piece)
            file.finish()
        except BaseException:
            beside.shutdown(cancel_futures=True)
            file.abandon()
            raise
    return Digest(size, digest.hexdigest())


def digest_of(path: Path, largest_bytes: float = math.inf, seen: Callable[[int], None] = lambda size: None) -> Digest:
    """Of what the disk has. Of a larger file it is that of the first part. Raises StorageFailed when it cannot be read.

    seen: is told the size of every piece that was read.
    """
    digest, size = hashlib.sha256(), 0
    for piece in read_from_disk(path):
        digest.update(piece)
        size += len(piece)
        seen(len(piece))
        if size > largest_bytes:
            break
    return Digest(size, digest.hexdigest())


def read_digested(path: Path, largest_bytes: int) -> tuple[bytes, Digest]:
    """The whole content and its digest, from one reading; of a larger file only the first part, which is larger too,
    and whose digest is another. Raises StorageFailed when the file cannot be read."""
    content = read_bytes(path, largest_bytes + 1)
    return content, Digest(len(content), hashlib.sha256(content).hexdigest())


def _pieces(parts: Iterable[bytes | memoryview]) -> Iterator[memoryview]:
    for part in parts:
        whole = memoryview(part).cast("B")
        for start in range(0, len(whole), PIECE_BYTES):
            yield whole[start : start + PIECE_BYTES]


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
