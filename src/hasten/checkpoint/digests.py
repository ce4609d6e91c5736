"""The SHA-256 of a file, computed while it is written and again when it is read; `sha256sum` gives the same.

Hashing is slower than writing into the page cache, so it runs in a second thread beside the writing, and several files
are processed at once.
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

PIECE_BYTES = 1 << 20  # small enough to be in the processor's cache when it is hashed

Item = TypeVar("Item")
Made = TypeVar("Made")


@dataclass(frozen=True, slots=True)
class Digest:
    """What a file must be: its size in bytes, and the SHA-256 of its content as 64 hexadecimal digits."""

    bytes: int
    sha256: str


def write_digested(path: Path, parts: Iterable[bytes | memoryview]) -> Digest:
    """Write a new file from these parts and force it to the disk. The parts must not change meanwhile.

    Raises StorageFailed; a part of the file may exist then.
    """
    digest, size = hashlib.sha256(), 0
    file = NewFile.past_the_cache(path)
    with ThreadPoolExecutor(max_workers=1) as hashing:
        try:
            for piece in _pieces(parts):
                hashing.submit(digest.update, piece)
                file.write(piece)
                size += len(piece)
            file.finish()
        finally:
            file.abandon()
    return Digest(size, digest.hexdigest())


def digest_of(path: Path, largest_bytes: float = math.inf) -> Digest:
    """The digest of what is on the disk; of a file larger than `largest_bytes`, that of its first part.

    Raises StorageFailed when the file cannot be read.
    """
    digest, size = hashlib.sha256(), 0
    for piece in read_from_disk(path):
        digest.update(piece)
        size += len(piece)
        if size > largest_bytes:
            break
    return Digest(size, digest.hexdigest())


def read_digested(path: Path, largest_bytes: int) -> tuple[bytes, Digest]:
    """The content and its digest, from one reading; of a larger file, one byte more than `largest_bytes`.

    Raises StorageFailed when the file cannot be read.
    """
    content = read_bytes(path, largest_bytes + 1)
    return content, Digest(len(content), hashlib.sha256(content).hexdigest())


def in_threads(work: Callable[[Item], Made], items: Iterable[Item], threads: int) -> list[Made]:
    """The results for the items, in their order. Raises the first item's error, once started items have ended."""
    if threads == 1:
        return [*map(work, items)]
    with ThreadPoolExecutor(threads) as workers:
        return [*workers.map(work, items)]


def most_threads() -> int:
    """How many threads make work on files faster: one more than processors, as one waits for the disk; at most 4."""
    return min(usable_cores() + 1, 4)


def _pieces(parts: Iterable[bytes | memoryview]) -> Iterator[memoryview]:
    for part in parts:
        whole = memoryview(part).cast("B")
        for start in range(0, len(whole), PIECE_BYTES):
            yield whole[start : start + PIECE_BYTES]
