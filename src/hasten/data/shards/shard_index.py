"""Where each sample lies in the shards: the index that makes a row of tar files a map-style data set.

A folder of shards that `hasten pack` wrote holds, beside them,

* index.bin: for each sample 24 bytes, little-endian: offset and length (uint64) of its piece of the tar, headers
  included, the shard's number and the CRC-32 of the piece (uint32).
* index.json: schema, number of samples, the classes if there are any; name, size, SHA-256 and samples of each shard;
  size and SHA-256 of index.bin.

index.bin is memory-mapped: opening it costs the same for fifty samples as for fifty million, and all workers and ranks
of a machine share one copy. So its digest is not computed at the start: each row is checked when it is used, against
the shard and, by the CRC, against the bytes that it points to. `hasten pack FOLDER --verify` checks all.

Shards from elsewhere have no index. It is built by reading every header once, and held in memory. Without checksums of
their samples, only damage to headers is found.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from hasten.data.shards.tar_reader import BLOCK, LARGEST_MEMBER, members, samples
from hasten.errors import DataFailed

MANIFEST, ROWS = "index.json", "index.bin"
SCHEMA = 1
ROW = np.dtype([("offset", "<u8"), ("length", "<u8"), ("shard", "<u4"), ("crc32", "<u4")])
_ROW = struct.Struct("<QQII")  # the same, for one row
LARGEST_MANIFEST = 1 << 26  # bytes
LARGEST_SAMPLE = 2 * LARGEST_MEMBER
UNFINISHED = ".unfinished"  # behind the name of a folder that is still being packed

Progress = Callable[[int, int], None]  # bytes done, bytes in all

_Size = Annotated[int, Field(ge=0, lt=1 << 63)]
_Digest = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class ShardTable(_Table):
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-][A-Za-z0-9_.-]*\.tar$")]
    bytes: _Size
    sha256: _Digest
    samples: _Size


class RowsTable(_Table):
    bytes: _Size
    sha256: _Digest


class Manifest(_Table):
    """index.json."""

    schema_: Annotated[Literal[1], Field(alias="schema")]
    samples: _Size
    classes: list[str] | None
    shards: list[ShardTable]
    index: RowsTable


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardIndex:
    paths: tuple[Path, ...]  # of the shards
    sizes: tuple[int, ...]  # of the shards, in bytes
    counts: np.ndarray  # int64, shape (shards,): how many samples each holds; they stand in the order of the rows
    rows: np.ndarray  # of ROW, shape (samples,)
    has_checksums: bool
    classes: tuple[str, ...] | None = None  # their names, by number

    def piece(self, sample: int) -> tuple[int, int, int, int]:
        """Shard, offset, length and CRC-32 of a sample. Raises DataFailed when it cannot lie there."""
        offset, length, shard, crc32 = self.rows[sample].item()
        if shard >= len(self.paths):
            what = f"sample {sample:,} should lie in shard number {shard:,}, and there are {len(self.paths):,}"
            raise DataFailed(what, where=f"{ROWS} of the shards", fix=_PACK_AGAIN)
        if offset % BLOCK or length % BLOCK or not 0 < length <= self.sizes[shard] - offset:
            what = f"sample {sample:,} should lie at bytes {offset:,} to {offset + length:,}, where no sample can lie"
            raise DataFailed(what, where=str(self.paths[shard]), fix=_PACK_AGAIN)
        if length > LARGEST_SAMPLE:
            what = f"sample {sample:,} should have {length:,} bytes; {LARGEST_SAMPLE:,} are the most"
            raise DataFailed(what, where=str(self.paths[shard]), fix=_PACK_AGAIN)
        return shard, offset, length, crc32


_PACK_AGAIN = "index and shards do not belong together, or are damaged: run hasten pack again"


def open_index(folder: Path) -> ShardIndex:
    """The index of a folder that `hasten pack` wrote.

    Raises DataFailed for an index that is damaged, of another version, or of other shards than lie beside it.
    """
    manifest = read_manifest(folder)
    size = _size_of(folder / ROWS)
    if size != manifest.index.bytes or size != manifest.samples * ROW.itemsize:
        what = f"has {size:,} bytes, and {manifest.index.bytes:,} are in the manifest, for {manifest.samples:,} samples"
        raise DataFailed(what, where=str(folder / ROWS), fix=_PACK_AGAIN)
    rows = np.memmap(folder / ROWS, dtype=ROW, mode="r") if size else np.empty(0, dtype=ROW)
    for shard in manifest.shards:
        found = _size_of(folder / shard.name)
        if found != shard.bytes:
            what = f"has {found:,} bytes, and {shard.bytes:,} when it was packed"
            raise DataFailed(what, where=str(folder / shard.name), fix="fetch it again, or run hasten pack again")
    return ShardIndex(
        paths=tuple(folder / shard.name for shard in manifest.shards),
        sizes=tuple(shard.bytes for shard in manifest.shards),
        counts=np.array([shard.samples for shard in manifest.shards], dtype=np.int64),
        rows=np.asarray(rows),  # without the subclass, whose every access costs
        has_checksums=True,
        classes=None if manifest.classes is None else tuple(manifest.classes),
    )


def read_manifest(folder: Path) -> Manifest:
    """index.json of a folder. Raises DataFailed when there is none, or it is none of this version."""
    path = folder / MANIFEST
    try:
        with open(path, "rb") as file:
            data = file.read(LARGEST_MANIFEST + 1)
    except OSError as error:
        raise _missing(path, error) from error
    if len(data) > LARGEST_MANIFEST:
        raise DataFailed(f"is longer than {LARGEST_MANIFEST:,} bytes", where=str(path), fix=_PACK_AGAIN)
    try:
        manifest = Manifest.model_validate_json(data)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        what = f"is no index of shards of schema {SCHEMA}: {place or 'its text'}: {first['msg']}"
        raise DataFailed(what, where=str(path), fix="run hasten pack again, or use the hasten that wrote it") from None
    if sum(shard.samples for shard in manifest.shards) != manifest.samples:
        what = f"says {manifest.samples:,} samples, and its shards hold another number"
        raise DataFailed(what, where=str(path), fix=_PACK_AGAIN)
    if len({shard.name for shard in manifest.shards}) != len(manifest.shards):
        raise DataFailed("names a shard twice", where=str(path), fix=_PACK_AGAIN)
    return manifest


def scanned(paths: Sequence[Path], progress: Progress | None = None) -> ShardIndex:
    """The index of shards that have none, by reading all of their headers.

    Raises DataFailed for whatever tar.members refuses, and for a file that cannot be read.
    """
    sizes = tuple(_size_of(path) for path in paths)
    rows, counts, before = bytearray(), np.zeros(len(paths), dtype=np.int64), 0
    for number, (path, size) in enumerate(zip(paths, sizes, strict=True)):
        name = str(path)
        with _opened(path) as file:

            def read(offset: int, length: int, descriptor: int = file.fileno()) -> bytes:
                return os.pread(descriptor, length, offset)

            for sample in samples(members(read, name, size), name):
                start, end = sample[0].start, sample[-1].end
                if end - start > LARGEST_SAMPLE:
                    what = f"sample {sample[0].key!r} has {end - start:,} bytes; {LARGEST_SAMPLE:,} are the most"
                    raise DataFailed(what, where=f"{name}, byte {start:,}", fix="cut it into smaller members")
                rows += packed_row(start, end - start, number, 0)
                counts[number] += 1
                if progress is not None and counts[number] % 1024 == 0:
                    progress(before + end, sum(sizes))
        before += size
        if progress is not None:
            progress(before, sum(sizes))
    return ShardIndex(
        paths=tuple(paths),
        sizes=sizes,
        counts=counts,
        rows=np.frombuffer(rows, dtype=ROW),
        has_checksums=False,
    )


def packed_row(offset: int, length: int, shard: int, crc32: int) -> bytes:
    """A row of index.bin."""
    return _ROW.pack(offset, length, shard, crc32)


def _opened(path: Path) -> FileIO:
    try:
        return open(path, "rb", buffering=0)
    except OSError as error:
        raise _missing(path, error) from error


def _size_of(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError as error:
        raise _missing(path, error) from error


def _missing(path: Path, error: OSError) -> DataFailed:
    return DataFailed(f"cannot be read: {error.strerror}", where=str(path), fix="look at the path, or run hasten pack")
