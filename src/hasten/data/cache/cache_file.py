"""A cache on disk: a folder with three files, which is either whole or not a cache.

| file | holds |
|---|---|
| data.bin | the values of all samples, one sample after another |
| index.bin | int64, one row a sample: CRC-32, where its values begin, how many bytes they are, its own numbers |
| manifest.json | schema, key, form of the samples, counts, size, a digest of itself. Written last |

The first two are memory-mapped: every worker and every rank on the machine shares one copy of them. A sample is checked
when it is first read. Its CRC-32 begins with the cache's key and its number, so no sample is taken for another.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import zlib
from operator import index as whole_number
from pathlib import Path
from typing import Any

import numpy as np

from hasten.checkpoint import files
from hasten.data.cache.sample_format import Form, Packed, Unpacker
from hasten.errors import DataFailed, StorageFailed
from hasten.regular_files import check_regular, read_regular

SCHEMA = 3
DATA, INDEX, MANIFEST = "data.bin", "index.bin", "manifest.json"
FIXED = 3  # numbers of a row of the index that every sample has: CRC-32, start, bytes
LARGEST_MANIFEST = 1 << 24  # bytes


class Damaged(Exception):
    """The folder is no whole cache. The message names the file and what is wrong with it."""


class Writer:
    """Writes a cache into a folder that exists, sample by sample. It is a cache after finish(). key: the name of the
    cache (see cache_key.py)."""

    def __init__(self, folder: Path, key: str) -> None:
        self._folder, self._key, self._salt = folder, key, zlib.crc32(key.encode())
        self._data, self._index = files.NewFile(folder / DATA), files.NewFile(folder / INDEX)
        self._form: Form | None = None
        self._samples, self._position = 0, 0

    def add(self, packed: Packed) -> None:
        """Raises DataFailed for a sample of another form than the first one."""
        self._form = self._form or packed.form
        if packed.form != self._form:
            what = f"sample {self._samples} has a different structure than sample 0: {packed.form}, not {self._form}"
            raise DataFailed(what, fix="give all samples the same structure")
        row = np.array((0, self._position, len(packed.values), *packed.numbers), dtype=np.int64)
        row[0] = _checksum(self._salt + self._samples, row, packed.values)
        self._index.write(row.tobytes())
        self._data.write(packed.values)
        self._samples, self._position = self._samples + 1, self._position + len(packed.values)

    def finish(self) -> None:
        self._data.finish()
        self._index.finish()
        content = {
            "schema": SCHEMA,
            "key": self._key,
            "form": self._form or ["none"],
            "samples": self._samples,
            "data_bytes": self._position,
        }
        text = json.dumps({"digest": digest_of(content), "manifest": content}, indent=1)
        files.write_atomically(self._folder / MANIFEST, text.encode())

    def abandon(self) -> None:
        self._data.abandon()
        self._index.abandon()


class Cached:
    """The samples of a cache, as a map-style data set. cached[i] is equal, value for value, to sample i of the data set
    that the cache was made of, with memory of its own. Raises Damaged when the folder is no whole cache."""

    steady_reason = "a cache gives the bytes that were written"

    def __init__(self, folder: Path) -> None:
        self.folder, path = folder, folder / MANIFEST
        content = _content_of(path)
        try:
            self.key, self._samples, data_bytes = content["key"], content["samples"], content["data_bytes"]
            self._unpacker, self._salt = Unpacker(content["form"]), zlib.crc32(self.key.encode())
            index = self._mapped(INDEX, np.int64, self._samples * (FIXED + self._unpacker.numbers))
            self._index = index.reshape(self._samples, -1)
            self._data = self._mapped(DATA, np.uint8, data_bytes)
        except (TypeError, ValueError, LookupError, AttributeError) as error:
            raise Damaged(f"{path} names an unknown form of samples: {error}") from None
        # In memory that forked workers share, or those of every epoch would check everything again.
        self._checked = np.frombuffer(mmap.mmap(-1, self._samples), dtype=np.bool_)

    def __len__(self) -> int:
        return self._samples

    def __getitem__(self, index: int) -> Any:
        """Sample `index`, with memory of its own. Raises StorageFailed when it differs from what was written."""
        return self._unpacker.sample(*self._found(index))

    def view(self, index: int) -> Any:
        """Sample `index` without copying: its tensors, arrays and images as read-only NumPy arrays (see Unpacker.view).
        Raises what [index] does."""
        return self._unpacker.view(*self._found(index))

    def _mapped(self, name: str, dtype: Any, count: int) -> np.ndarray:
        path = self.folder / name
        try:
            check_regular(path)
            size, wanted = path.stat().st_size, count * np.dtype(dtype).itemsize
            if size != wanted:
                raise Damaged(f"{path} has {size} bytes instead of {wanted}")
            if not count:
                return np.empty(0, dtype)  # an empty file cannot be mapped: samples may be nothing but None
            return np.asarray(np.memmap(path, dtype, "r"))  # without the subclass, whose every access costs
        except OSError as error:
            raise Damaged(f"{path} cannot be read: {error.strerror}") from None

    def _found(self, index: int) -> tuple[list[int], np.ndarray]:
        index, count = whole_number(index), self._samples
        if not -count <= index < count:
            raise IndexError(f"sample {index} of a cache with {count} samples")
        index %= count
        row = self._index[index]
        crc, start, size, *numbers = row.tolist()
        values = self._data[start : start + size]  # a slice stays within the file, whatever the row says
        if not self._checked[index]:
            if crc != _checksum(self._salt + index, row, values):
                raise self._damaged(index)
            self._checked[index] = True
        return numbers, values

    def _damaged(self, index: int) -> StorageFailed:
        """The error, after a change to the cache that makes the next open rebuild it."""
        fix = "run it again: the cache is rebuilt"
        try:
            files.remove_file(self.folder / MANIFEST)
        except StorageFailed:
            fix = f"remove {self.folder} to rebuild it"
        return StorageFailed(f"sample {index} differs from what was written", where=str(self.folder), fix=fix)

    def __reduce__(self) -> tuple[Any, tuple[Path]]:
        return Cached, (self.folder,)


def _content_of(path: Path) -> dict[str, Any]:
    """Of a manifest."""
    try:
        found = json.loads(read_regular(path, LARGEST_MANIFEST))
        content = found["manifest"]
        if found["digest"] != digest_of(content):
            raise Damaged(f"{path} differs from what was written")
        return content
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise Damaged(f"{path} cannot be read: {type(error).__name__}: {error}") from None


def digest_of(content: dict[str, Any]) -> str:
    """Of the manifest's content."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _checksum(salt: int, row: np.ndarray, values: Any) -> int:
    """CRC-32 of a sample: of its row without this number, and of its values. Another salt gives another one."""
    return zlib.crc32(values, zlib.crc32(row[1:].data, salt & 0xFFFFFFFF))
