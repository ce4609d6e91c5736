"""A cache on disk: a folder with three files, which is either whole or not a cache.

| file | holds |
|---|---|
| data.bin | the values of all samples, one sample after another |
| index.bin | int64, one row a sample: CRC-32, where its values begin, how many bytes they are, its own numbers |
| manifest.json | schema, key, form of the samples, counts, size, a digest of itself. Written last |

In place of a sample that could not be read stands why, as text; the bytes of its row are then below zero.

All are read through a memory map, so the pages are the system's: every worker and every rank on the machine shares one
copy of them, and nothing is loaded when the cache is opened but the manifest. A reader that is sent to a worker is sent
as a path.

How damage is found: the manifest by its own digest; the sizes of the others by the manifest; each sample by its CRC-32,
which covers its row and its values. It begins with the cache's key and the sample's number, so that no other sample can
stand in its place. To look at all rows when a cache is opened would take seconds where there are many. A check reads
every byte once more, so each is checked when it is first read by a process or by one that this forked. Damage to the
system's own memory after that is not found.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import sys
import zlib
from collections.abc import Callable
from dataclasses import asdict, dataclass
from operator import index as whole_number
from pathlib import Path
from typing import Any

import numpy as np

from hasten.checkpoint import files
from hasten.data.cache.cache_columns import columns_in, first_damaged
from hasten.data.cache.cache_unpacker import Unpacker, padded
from hasten.data.cache.sample_format import Form, Packed, difference
from hasten.data.loading.bad_samples import SCARCE
from hasten.errors import DataFailed, StorageFailed

SCHEMA = 2
DATA, INDEX, MANIFEST = "data.bin", "index.bin", "manifest.json"
FIXED = 3  # numbers of a row of the index that every sample has: CRC-32, start, bytes
LARGEST_MANIFEST = 1 << 24  # bytes
_SET_NOTHING_ASIDE = getattr(mmap, "MAP_NORESERVE", 0x4000 if sys.platform == "linux" else 0)  # named from 3.12 on


class Damaged(Exception):
    """The folder is no whole cache. The message names the file and what is wrong with it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Manifest:
    schema: int
    key: str
    about: str  # the data set, in words
    form: Form
    samples: int
    bad: int  # of the samples, could not be read
    uniform: bool  # every sample could be read, and all have the same numbers
    data_bytes: int


class Different(Exception):
    """A sample has another form than the first one."""


class Writer:
    """Writes a cache into a folder that exists, sample by sample. It is a cache after finish().

    key: what it is made of (see cache_key.py).
    """

    def __init__(self, folder: Path, key: str) -> None:
        self._folder, self._key, self._salt = folder, key, _salt_of(key)
        self._data, self._index = files.NewFile(folder / DATA), files.NewFile(folder / INDEX)
        self._form: Form | None = None
        self._numbers: tuple[int, ...] = ()
        self._before = list[bytes]()  # texts in place of the first samples: rows are as long as the form says
        self._uniform, self._samples, self._bad, self._position = True, 0, 0, 0

    def add(self, packed: Packed) -> None:
        """Raises Different."""
        if self._form is None:
            self._form, self._numbers = packed.form, packed.numbers
            self._add_those_before()
        elif packed.form != self._form:
            raise Different(difference(packed.form, self._form))
        self._uniform = self._uniform and packed.numbers == self._numbers
        self._append(packed.values, len(packed.values), packed.numbers)

    def add_bad(self, error: DataFailed) -> None:
        """In place of a sample that cannot be read, what to raise when somebody wants to read it."""
        self._bad += 1
        self._before.append(json.dumps([error.what, error.where, error.fix]).encode())
        if self._form is not None:
            self._add_those_before()

    def finish(self, about: str) -> None:
        self._add_those_before()
        self._data.finish()
        self._index.finish()
        manifest = Manifest(
            schema=SCHEMA,
            key=self._key,
            about=about,
            form=self._form or ["none"],
            samples=self._samples,
            bad=self._bad,
            uniform=self._uniform and not self._bad,
            data_bytes=self._position,
        )
        content = asdict(manifest)
        text = json.dumps({"digest": _digest_of(content), "manifest": content}, indent=1)
        files.write_atomically(self._folder / MANIFEST, text.encode())

    def _add_those_before(self) -> None:
        for text in self._before:
            values = text.ljust(padded(len(text)))  # what follows shall be aligned too
            self._append(values, -len(values), (0,) * len(self._numbers))
        self._before.clear()

    def _append(self, values: bytes, size: int, numbers: tuple[int, ...]) -> None:
        row = np.array((0, self._position, size, *numbers), dtype=np.int64)
        row[0] = _checksum(self._salt + self._samples, row, values)
        self._index.write(row.tobytes())
        self._data.write(values)
        self._samples, self._position = self._samples + 1, self._position + len(values)

    def abandon(self) -> None:
        self._data.abandon()
        self._index.abandon()


def _salt_of(key: str) -> int:
    return zlib.crc32(key.encode())


def _checksum(salt: int, row: np.ndarray, values: Any) -> int:
    """CRC-32 of a sample: of its row, but for the place of this number, and of its values. Another salt gives another
    one."""
    return zlib.crc32(values, zlib.crc32(row[1:].data, salt & 0xFFFFFFFF))


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
            raise Damaged(f"{folder}: {found['damaged']}")
        content = found["manifest"]
        if found["digest"] != _digest_of(content):
            raise Damaged(f"{path} is not as it was written")
        if content["schema"] != SCHEMA:
            raise Damaged(f"{path} has the schema {content['schema']}, and this version of hasten reads {SCHEMA}")
        return Manifest(**content)
    except FileNotFoundError:
        raise
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise Damaged(f"{path} cannot be read: {type(error).__name__}: {error}") from None


class Cached:
    """The samples of a cache, as a map-style data set.

    cached[i] is equal, bit for bit, to sample i of the data set that the cache was made of, in memory of its own; where
    that could not be read, it raises DataFailed with the same words.
    Raises Damaged when the folder is no whole cache, and FileNotFoundError when there is none.
    """

    steady_reason = "a cache gives the bytes that were written"

    def __init__(self, folder: Path) -> None:
        self.folder, self._manifest = folder, read_manifest(folder)
        self._salt = _salt_of(self._manifest.key)
        try:
            self._unpacker = Unpacker(self._manifest.form)
        except (TypeError, ValueError, LookupError) as error:
            raise Damaged(f"{folder / MANIFEST} names a form of samples that there is not: {error}") from None
        self._index = self._mapped(INDEX, np.int64, self._manifest.samples * (FIXED + self._unpacker.numbers))
        self._index = self._index.reshape(self._manifest.samples, -1)
        self._data = self._mapped(DATA, np.uint8, self._manifest.data_bytes)
        # In memory that forked workers share, or those of every epoch would check everything again.
        self._checked = np.frombuffer(mmap.mmap(-1, self._manifest.samples), dtype=np.bool_)

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
            # memory, still cannot reach the file. The system would set aside as much memory as it is long.
            with open(path, "rb") as file:
                flags, access = mmap.MAP_PRIVATE | _SET_NOTHING_ASIDE, mmap.PROT_READ | mmap.PROT_WRITE
                block = mmap.mmap(file.fileno(), wanted, flags=flags, prot=access)
        except OSError as error:
            if error.errno in SCARCE:
                fix = "end other processes, or allow more memory and more open files"
                raise StorageFailed(f"cannot be mapped: {error.strerror}", where=str(path), fix=fix) from error
            raise Damaged(f"{path} cannot be read: {error.strerror}") from None
        found = np.frombuffer(block, dtype)
        found.flags.writeable = False
        return found

    @property
    def key(self) -> str:
        """What the cache was made of (see cache_key.py)."""
        return self._manifest.key

    @property
    def bad(self) -> int:
        """How many of its samples could not be read when it was built."""
        return self._manifest.bad

    @property
    def size_bytes(self) -> int:
        return self._manifest.data_bytes + self._index.nbytes

    def __len__(self) -> int:
        return self._manifest.samples

    def __getitem__(self, index: int) -> Any:
        """Sample `index`, as a copy of its own.

        Raises StorageFailed when it is not as it was written, and DataFailed when it could not be read to be kept.
        """
        return self._unpacker.sample(*self._found(index))

    def view(self, index: int) -> Any:
        """Sample `index` without copying: its tensors, arrays and pictures as read-only NumPy arrays.

        They lie in the memory map. A picture has the shape (height, width) or (height, width, bands), uint8 for all
        modes but "I;16", "I" and "F"; a tensor of a dtype that NumPy has not is its bytes. Raises what [index] does.
        """
        return self._unpacker.view(*self._found(index))

    def columns(self, progress: Callable[[int, int], None] = lambda done, samples: None) -> Any:
        """Each part of all samples as one read-only array, shape (samples, …), in the memory map: for gathering by
        index. None where samples differ in shape, are nested, or hold other things than tensors, arrays and numbers,
        and where one could not be read.

        All samples are checked first, which reads the whole cache once; progress is called with samples done and in
        all. Raises StorageFailed when one is damaged.
        """
        if not self._manifest.uniform:
            return None
        self._found(0)  # what all of them are taken to be like
        columns = columns_in(self._manifest.form, self._index[0, FIXED:].tolist(), self._data, len(self))
        if columns is not None:
            damaged = first_damaged(self._index, self._data, self._salt, self._checked, progress)
            if damaged is not None:
                raise self._damaged(damaged)
        return columns

    def _found(self, index: int) -> tuple[list[int], np.ndarray]:
        index, count = whole_number(index), self._manifest.samples
        if not -count <= index < count:
            raise IndexError(f"sample {index} of a cache with {count} samples")
        index %= count
        row = self._index[index]
        crc, start, size, *numbers = row.tolist()
        values = self._data[start : start + abs(size)]  # a slice stays within the file, whatever the row says
        if not self._checked[index]:
            if crc != _checksum(self._salt + index, row, values):
                raise self._damaged(index)
            self._checked[index] = True
        if size < 0:
            what, where, fix = json.loads(values.tobytes())
            raise DataFailed(what, where=where, fix=fix)
        return numbers, values

    def _damaged(self, index: int) -> StorageFailed:
        """The error, after a mark on the cache that makes the next open build it anew."""
        what, fix = f"sample {index} is not as it was written", "run it again: the cache is built anew"
        try:
            files.write_atomically(self.folder / MANIFEST, json.dumps({"damaged": what}).encode())
        except StorageFailed:
            fix = f"remove {self.folder}; then it is built anew"
        return StorageFailed(what, where=str(self.folder), fix=fix)

    def __reduce__(self) -> tuple[Any, tuple[Path]]:
        return Cached, (self.folder,)
