"""Reading all packed shards again, against the digests that were stored when they were packed.

Training compares the CRC-32 of each sample that it reads. This finds damage before training, and in the index and the
ends of the shards, which belong to no sample.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from hasten.data.shards.shard_dataset import Shards
from hasten.data.shards.shard_index import ROWS, Progress, open_index, read_manifest
from hasten.errors import DataFailed

_PIECE = 1 << 22


@dataclass(frozen=True, kw_only=True, slots=True)
class Verified:
    samples: int
    shards: int
    bytes: int


def verify(folder: Path, progress: Progress | None = None) -> Verified:
    """Compare index and shards with their digests. progress: called with (bytes done, bytes in all).

    Raises DataFailed, naming every damaged shard, and the first damaged sample where damage lies in one.
    """
    manifest = read_manifest(folder)
    open_index(folder)  # the sizes
    whole = sum(shard.bytes for shard in manifest.shards)
    if _digest(folder / ROWS, None, 0, whole) != manifest.index.sha256:
        what = "is damaged: its bytes are not those that were packed"
        raise DataFailed(what, where=str(folder / ROWS), fix="run hasten pack again")
    damaged, first_sample, done, detail = list[str](), 0, 0, ""
    for shard in manifest.shards:
        if _digest(folder / shard.name, progress, done, whole) != shard.sha256:
            damaged.append(shard.name)
            detail = detail or _damage(folder, range(first_sample, first_sample + shard.samples))
        first_sample, done = first_sample + shard.samples, done + shard.bytes
    if damaged:
        what = f"{len(damaged)} of {len(manifest.shards)} shards are damaged: {', '.join(damaged[:20])}"
        raise DataFailed(f"{what}; {detail}", where=str(folder), fix="fetch these again, or run hasten pack again")
    return Verified(samples=manifest.samples, shards=len(manifest.shards), bytes=whole)


def _digest(path: Path, progress: Progress | None, done: int, whole: int) -> str:
    digest = hashlib.sha256()
    try:
        with open(path, "rb") as file:
            while piece := file.read(_PIECE):
                digest.update(piece)
                done += len(piece)
                if progress is not None:
                    progress(done, whole)
    except OSError as error:
        raise DataFailed(f"cannot be read: {error.strerror}", where=str(path), fix="look at the disk") from error
    return digest.hexdigest()


def _damage(folder: Path, numbers: range) -> str:
    """The error of the first damaged sample among these; where none is damaged, where the damage must be."""
    data = Shards(folder)
    for index in numbers:
        try:
            data[index]
        except DataFailed as error:
            return f"{error.where}: {error.what}"
    return "no sample is damaged: the damage lies behind the last one"
