"""Where each sample lies in the shards: the index that makes a row of tar files a map-style data set.

A folder of shards that `hasten pack` wrote holds, beside them,

* index.bin: for each sample 24 bytes, little-endian: offset and length (uint64) of its piece of the tar, headers
  included, the shard's number and the CRC-32 of the piece (uint32). It is memory-mapped.
* index.json: schema, number of samples, the classes if there are any; name, size, SHA-256 and samples of each shard;
  size and SHA-256 of index.bin.

Shards from elsewhere have no index. It is built by reading every header once, and held in memory, without checksums.
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from hasten.data.shards.tar_reader import BLOCK, LARGEST_MEMBER, members_of_archive, samples
from hasten.errors import DataFailed
from hasten.regular_files import check_regular, open_regular, read_regular

MANIFEST, ROWS = "index.json", "index.bin"
SCHEMA = 1
ROW = np.dtype([("offset", "<u8"), ("length", "<u8"), ("shard", "<u4"), ("crc32", "<u4")])
_ROW = struct.Struct("<QQII")  # the same, for one row
LARGEST_MANIFEST = 1 << 26  # bytes; what lies behind them is not read
LARGEST_SAMPLE = LARGEST_MEMBER + (1 << 20)  # bytes, so that one call reads it

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

    @property
    def bytes(self) -> int:
        """Of all shards."""
        return sum(shard.bytes for shard in self.shards)


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
        size = self.sizes[shard] if shard < len(self.sizes) else 0
        fits = 0 < length <= min(size - offset, LARGEST_SAMPLE)
        if offset % BLOCK or length % BLOCK or not fits:
            what = f"sample {sample:,} should lie at bytes {offset:,} to {offset + length:,} of shard number {shard:,}"
            raise DataFailed(f"{what}, where no sample can be", where=f"{ROWS} of the shards", fix=_PACK_AGAIN)
        return shard, offset, length, crc32


_PACK_AGAIN = "the index does not match the shards, or one is damaged:  run hasten pack again"


def open_index(folder: Path) -> ShardIndex:
    """The index of a folder that `hasten pack` wrote. Raises DataFailed for an index that is damaged, of another
    version, or of other shards than lie beside it."""
    manifest = read_manifest(folder)
    counts = np.array([shard.samples for shard in manifest.shards], dtype=np.int64)
    size = _size_of(folder / ROWS)
    if not size == manifest.index.bytes == manifest.samples * ROW.itemsize or counts.sum() != manifest.samples:
        what = f"has {size:,} bytes, which does not match the {manifest.samples:,} samples and the shards in {MANIFEST}"
        raise DataFailed(what, where=str(folder / ROWS), fix=_PACK_AGAIN)
    rows = np.memmap(folder / ROWS, dtype=ROW, mode="r") if size else np.empty(0, dtype=ROW)
    for shard in manifest.shards:
        found = _size_of(folder / shard.name)
        if found != shard.bytes:
            what = f"has {found:,} bytes, and {shard.bytes:,} when it was packed"
            raise DataFailed(what, where=str(folder / shard.name), fix="download it again, or run hasten pack again")
    return ShardIndex(
        paths=tuple(folder / shard.name for shard in manifest.shards),
        sizes=tuple(shard.bytes for shard in manifest.shards),
        counts=counts,
        rows=np.asarray(rows),  # without the subclass, whose every access costs
        has_checksums=True,
        classes=None if manifest.classes is None else tuple(manifest.classes),
    )


def read_manifest(folder: Path) -> Manifest:
    """index.json of a folder. Raises DataFailed when there is none, or it is none of this version."""
    path = folder / MANIFEST
    try:
        return Manifest.model_validate_json(read_regular(path, LARGEST_MANIFEST))
    except OSError as error:
        raise _missing(path, error) from error
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        what = f"is not a shard index of schema {SCHEMA}: {place or 'its text'}: {first['msg']}"
        raise DataFailed(what, where=str(path), fix="run hasten pack again, or use the hasten that wrote it") from None


def scanned(paths: Sequence[Path]) -> ShardIndex:
    """The index of shards that have none, by reading all of their headers. Raises DataFailed for whatever
    tar_reader.members refuses, and for a file that cannot be read."""
    sizes = tuple(map(_size_of, paths))
    rows, counts = bytearray(), np.zeros(len(paths), dtype=np.int64)
    for number, (path, size) in enumerate(zip(paths, sizes, strict=True)):
        name = str(path)
        with open_regular(path) as file:

            def read(offset: int, length: int, descriptor: int = file.fileno()) -> bytes:
                return os.pread(descriptor, length, offset)

            for sample in samples(members_of_archive(read, name, size), name):
                start, end = sample[0].start, sample[-1].end
                rows += packed_row(start, end - start, number, 0)
                counts[number] += 1
    return ShardIndex(
        paths=tuple(paths),
        sizes=sizes,
        counts=counts,
        rows=np.frombuffer(rows, dtype=ROW),
        has_checksums=False,
    )


def verify(folder: Path, progress: Progress | None = None) -> Manifest:
    """Compare index and shards with their digests. progress: called with (bytes done, bytes in all). Training compares
    the CRC-32 of each sample that it reads. This finds damage before training, and in the index and the ends of the
    shards, which belong to no sample. Raises DataFailed, naming the damaged files."""
    manifest = read_manifest(folder)
    open_index(folder)  # the sizes
    files = {ROWS: manifest.index.sha256} | {shard.name: shard.sha256 for shard in manifest.shards}
    damaged, done, whole = list[str](), 0, manifest.index.bytes + manifest.bytes
    for name, expected in files.items():
        digest = hashlib.sha256()
        try:
            with open_regular(folder / name) as file:
                while piece := file.read(1 << 22):
                    digest.update(piece)
                    done += len(piece)
                    if progress is not None:
                        progress(done, whole)
        except OSError as error:
            where = str(folder / name)
            raise DataFailed(f"cannot be read: {error.strerror}", where=where, fix="check the disk") from error
        if digest.hexdigest() != expected:
            damaged.append(name)
    if damaged:
        what = f"{len(damaged)} of {len(files)} files are damaged: {', '.join(damaged[:20])}"
        raise DataFailed(what, where=str(folder), fix="download these again, or run hasten pack again")
    return manifest


def packed_row(offset: int, length: int, shard: int, crc32: int) -> bytes:
    """A row of index.bin."""
    return _ROW.pack(offset, length, shard, crc32)


def _size_of(path: Path) -> int:
    try:
        check_regular(path)
        return path.stat().st_size
    except OSError as error:
        raise _missing(path, error) from error


def _missing(path: Path, error: OSError) -> DataFailed:
    return DataFailed(f"cannot be read: {error.strerror}", where=str(path), fix="check the path, or run hasten pack")
