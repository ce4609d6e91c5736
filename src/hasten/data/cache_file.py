"""A cache on disk: a folder with three files, which is either whole or not a cache.

| file | holds |
|---|---|
| data.bin | the values of all samples, one sample after another |
| index.bin | int64, one row a sample: where its values begin, how many bytes they are, their CRC-32, its own numbers |
| manifest.json | schema, key, form of the samples, counts, sizes, digests; of itself too. Written last |

All are read through a memory map, so the pages are the system's: every worker and every rank on the machine shares one
copy of them, and nothing is loaded when the cache is opened but the manifest. A reader that is sent to a worker is sent
as a path.

How damage is found: the manifest by its own digest; the index by the manifest's; the size of the data by the manifest;
each sample by its CRC-32. The last costs three times what reading the sample costs otherwise (half a megabyte: 224 µs
the first time, 57 µs later), so each sample is checked when it is first read by a process or by one that this forked.
Damage to the system's own memory after that is not found.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import zlib
from dataclasses import asdict, dataclass
from operator import index as whole_number
from pathlib import Path
from typing import Any

import numpy as np

from hasten.checkpoint import files
from hasten.data.cache_columns import columns_in
from hasten.data.cache_samples import Form, Packed, Unpacker, difference
from hasten.errors import StorageFailed

SCHEMA = 1
DATA, INDEX, MANIFEST = "data.bin", "index.bin", "manifest.json"
FIXED = 3  # numbers of a row of the index that every sample has: start, bytes, CRC-32
LARGEST_MANIFEST = 1 << 24  # bytes


class Damaged(Exception):
    """The folder is no whole cache. The message names the file and what is wrong with it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Manifest:
    schema: int
    key: str
    about: str  # the data set, in words
    form: Form
    samples: int
    uniform: bool  # every sample has the same numbers
    data_bytes: int
    index_digest: str  # SHA-256


class Different(Exception):
    """A sample has another form than the first one."""


class Writer:
    """Writes a cache into a folder that exists, sample by sample. It is a cache after finish()."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._data, self._index = files.NewFile(folder / DATA), files.NewFile(folder / INDEX)
        self._digest = hashlib.sha256()
        self._form: Form | None = None
        self._numbers: tuple[int, ...] = ()
        self._uniform, self._samples, self._position = True, 0, 0

    def add(self, packed: Packed) -> None:
        """Raises Different."""
        if self._form is None:
            self._form, self._numbers = packed.form, packed.numbers
        elif packed.form != self._form:
            raise Different(difference(packed.form, self._form))
        self._uniform = self._uniform and packed.numbers == self._numbers
        row = (self._position, len(packed.values), zlib.crc32(packed.values), *packed.numbers)
        line = np.array(row, dtype=np.int64).tobytes()
        self._digest.update(line)
        self._index.write(line)
        self._data.write(packed.values)
        self._samples, self._position = self._samples + 1, self._position + len(packed.values)

    def finish(self, key: str, about: str) -> None:
        self._data.finish()
        self._index.finish()
        manifest = Manifest(
            schema=SCHEMA,
            key=key,
            about=about,
            form=self._form or ["none"],
            samples=self._samples,
            uniform=self._uniform,
            data_bytes=self._position,
            index_digest=self._digest.hexdigest(),
        )
        content = asdict(manifest)
        text = json.dumps({"digest": _digest_of(content), "manifest": content}, indent=1)
        files.write_atomically(self._folder / MANIFEST, text.encode())

    def abandon(self) -> None:
        self._data.abandon()
        self._index.abandon()


def _digest_of(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def read_manifest(folder: Path) -> Manifest:
    """Raises Damaged, and FileNotFoundError where there is none."""
    path = folder / MANIFEST
    try:
        with open(path, "rb") as file:
            data = file.read(LARGEST_MANIFEST + 1)
        found = json.loads(data)
        if "damaged" in found:
            raise Damaged(f"{folder / DATA}: {found['damaged']}")
        content = found["manifest"]
        if found["digest"] != _digest_of(content):
            raise Damaged(f"{path} is not as it was written")
        manifest = Manifest(**content)
    except FileNotFoundError:
        raise
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise Damaged(f"{path} cannot be read: {type(error).__name__}: {error}") from None
    if manifest.schema != SCHEMA:
        raise Damaged(f"{path} has the schema {manifest.schema}, and this version of hasten reads {SCHEMA}")
    return manifest


class Cached:
    """The samples of a cache, as a map-style data set.

    cached[i] is equal, bit for bit, to sample i of the data set that the cache was made of, in memory of its own.
    Raises Damaged when the folder is no whole cache, and FileNotFoundError when there is none.
    """

    steady_reason = "a cache gives the bytes that were written"

    def __init__(self, folder: Path) -> None:
        self._open(folder)
        self._check_index()

    def _open(self, folder: Path) -> None:
        self.folder, self._manifest = folder, read_manifest(folder)
        self._unpacker = Unpacker(self._manifest.form)
        self._index = self._mapped(INDEX, np.int64, self._manifest.samples * (FIXED + self._unpacker.numbers))
        self._index = self._index.reshape(self._manifest.samples, -1)
        self._data = self._mapped(DATA, np.uint8, self._manifest.data_bytes)
        # In memory that forked workers share, or those of every epoch would check everything again.
        self._checked = np.frombuffer(mmap.mmap(-1, max(self._manifest.samples, 1)), dtype=np.bool_)

    def _mapped(self, name: str, dtype: Any, count: int) -> np.ndarray:
        path = self.folder / name
        try:
            there = path.stat().st_size
            wanted = count * np.dtype(dtype).itemsize
            if there != wanted:
                raise Damaged(f"{path} has {there} bytes instead of {wanted}")
            if not count:
                return np.empty(0, dtype)  # an empty file cannot be mapped: samples may be nothing but None
            # A private map, so that who takes the mark away that it is read-only, as torch demands before it looks at
            # memory, still cannot reach the file.
            found = np.asarray(np.memmap(path, dtype, "c"))
            found.flags.writeable = False
            return found
        except OSError as error:
            raise Damaged(f"{path} cannot be read: {error.strerror}") from None

    def _check_index(self) -> None:
        if hashlib.sha256(self._index.data).hexdigest() != self._manifest.index_digest:
            raise Damaged(f"{self.folder / INDEX} is not as it was written")

    @property
    def key(self) -> str:
        """What the cache was made of (see cache_key.py)."""
        return self._manifest.key

    @property
    def size_bytes(self) -> int:
        return self._manifest.data_bytes + self._index.nbytes

    def __len__(self) -> int:
        return self._manifest.samples

    def __getitem__(self, index: int) -> Any:
        """Sample `index`, as a copy of its own. Raises StorageFailed when its bytes are not those that were written."""
        return self._unpacker.sample(*self._found(index))

    def view(self, index: int) -> Any:
        """Sample `index` without copying: its tensors, arrays and pictures as read-only NumPy arrays.

        They lie in the memory map. A picture has the shape (height, width) or (height, width, bands), uint8 for all
        modes but "I;16", "I" and "F"; a tensor of a dtype that NumPy has not is its bytes. Raises what [index] does.
        """
        return self._unpacker.view(*self._found(index))

    def columns(self) -> Any:
        """Each part of all samples as one read-only array, shape (samples, …), in the memory map: for gathering by
        index. None where samples differ in shape, are nested, or hold other things than tensors, arrays and numbers.

        All samples are checked first, which reads the whole cache once. Raises StorageFailed when one is damaged.
        """
        if not self._manifest.uniform or len(self) == 0:
            return None
        columns = columns_in(self._manifest.form, self._index[0, FIXED:].tolist(), self._data, len(self))
        if columns is not None:
            for index in np.flatnonzero(~self._checked[: len(self)]).tolist():
                self._found(index)
        return columns

    def _found(self, index: int) -> tuple[list[int], np.ndarray]:
        index = whole_number(index)
        if not -len(self) <= index < len(self):
            raise IndexError(f"sample {index} of a cache with {len(self)} samples")
        index %= len(self)
        start, size, crc, *numbers = self._index[index].tolist()
        values = self._data[start : start + size]
        if not self._checked[index]:
            if zlib.crc32(values.data) != crc:
                raise self._damaged(index)
            self._checked[index] = True
        return numbers, values

    def _damaged(self, index: int) -> StorageFailed:
        """The error, after a mark on the cache that makes the next open build it anew."""
        path, what = self.folder / DATA, f"the bytes of sample {index} are not as they were written"
        fix = "run it again: the cache is built anew"
        try:
            files.write_atomically(self.folder / MANIFEST, json.dumps({"damaged": what}).encode())
        except StorageFailed:
            fix = f"remove {self.folder}; then it is built anew"
        return StorageFailed(what, where=str(path), fix=fix)

    def __reduce__(self) -> tuple[Any, tuple[Path]]:
        return _again, (self.folder,)


def _again(folder: Path) -> Cached:
    """The reader that another process sent; the index was checked there."""
    cached = Cached.__new__(Cached)
    cached._open(folder)
    return cached
