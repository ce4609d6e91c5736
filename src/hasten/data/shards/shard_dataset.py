"""Samples from WebDataset tar shards, as a map-style data set: any sample at any time, read where it lies.

    train=hasten.Shards("photos-shards", form=("jpg", "cls"), decode={"jpg": image})

A sample is one `pread` at a place that the index knows (see shard_index.py), so a loader shares samples among ranks and
workers, and resumes, as for any other data set. `sample_order` keeps reads together (see shard_order.py).
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from hasten.data.cache.cache_key import key_of
from hasten.data.shards.shard_index import MANIFEST, ROWS, SCHEMA, open_index, scanned
from hasten.data.shards.shard_members import Decode, decoded
from hasten.data.shards.shard_order import ShardOrder
from hasten.data.shards.tar_reader import KEY, Member, members, samples
from hasten.errors import DataFailed
from hasten.regular_files import open_regular

MOST_OPEN = 64  # files; a block of samples lies in a few
_FETCH_AGAIN = "download or pack this shard again"


class Shards:
    """A map-style data set of the samples in tar shards.

    shards: a folder that `hasten pack` wrote; or a folder, a list or one path of WebDataset shards (.tar) from
        elsewhere, whose headers are all read once at the start.
    form: what a sample is. None: a dictionary of all members by extension, and of its key under "__key__". A tuple of
        extensions: a tuple of these members; "jpg;png" stands for whichever of the two a sample has.
    decode: functions from a member's bytes to its value, by extension. Others are read as shard_members.py says: .npy,
        .cls, .json and .txt by what they are, all else as bytes.
    buffer: how many samples are shuffled together (see shard_order.py).

    Raises DataFailed when there are no shards, or they are not what their index says.
    """

    def __init__(
        self,
        shards: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        *,
        form: Sequence[str] | None = None,
        decode: Mapping[str, Decode] | None = None,
        buffer: int = 4096,
    ) -> None:
        if buffer < 1:
            raise ValueError(f"buffer is {buffer}; a block has at least one sample")
        self._form = None if form is None else tuple(tuple(names.lower().split(";")) for names in form)
        self._decode, self._buffer = dict(decode or {}), buffer
        self._folder, paths = _found(shards)
        self._index = open_index(self._folder) if self._folder is not None else scanned(paths)
        self.classes = self._index.classes  # their names, by number, where a folder of class folders was packed
        self._opened = lru_cache(MOST_OPEN)(_OpenFile)

    def __len__(self) -> int:
        return len(self._index.rows)

    def __getitem__(self, index: int) -> Any:
        """Sample `index`. Raises DataFailed, naming shard, member and offset, for a damaged or hostile one."""
        if not -len(self) <= index < len(self):
            raise IndexError(f"sample {index} of {len(self)}")
        shard, start, content = self._piece(index % len(self))
        name, stop = str(self._index.paths[shard]), start + len(content)

        def read(offset: int, size: int) -> bytes:
            return content[offset - start : offset - start + size]

        def value(member: Member) -> Any:
            return self._value(read(member.offset, member.size), member, name)

        found = list(samples(members(read, name, start, stop), name))
        if len(found) != 1:
            what = f"sample {index:,} should be at bytes {start:,} to {stop:,}; there are {len(found)} samples"
            raise DataFailed(what, where=name, fix="the index does not match the shards: run hasten pack again")
        (sample,) = found
        if self._form is None:
            return {KEY: sample[0].key} | {member.extension: value(member) for member in sample}
        return tuple(value(_wanted(names, sample, name)) for names in self._form)

    def sample_order(self, seed: int, shuffle: bool) -> ShardOrder:
        """In which order an epoch reads them; the loader asks for it."""
        return ShardOrder(self._index.counts, self._buffer, seed, shuffle)

    @property
    def steady_reason(self) -> str | None:
        """Why reading draws no random number; None where functions of the user's decode, which may."""
        return None if self._decode else "a shard holds the same bytes every time"

    def cache_key(self) -> str:
        """Changes with the shards' names, sizes and times, the form and the functions that decode."""
        files = [self._folder / name for name in (MANIFEST, ROWS)] if self._folder is not None else []
        return key_of((self._form, self._decode, files, self._index.paths), SCHEMA)

    def _piece(self, index: int) -> tuple[int, int, bytes]:
        """A sample's shard, the offset of its piece there, and the piece."""
        shard, offset, length, crc32 = self._index.piece(index)
        where = f"{self._index.paths[shard]}, bytes {offset:,} to {offset + length:,}"
        try:
            file = self._opened(self._index.paths[shard])  # held until it is read: another thread may open many others
            content = os.pread(file.descriptor, length, offset)
        except OSError as error:
            what = f"sample {index:,} cannot be read: {error.strerror}"
            raise DataFailed(what, where=where, fix="check the disk and the path") from error
        if len(content) < length:
            raise DataFailed(f"the shard ends inside sample {index:,}: it was cut off", where=where, fix=_FETCH_AGAIN)
        if self._index.has_checksums and zlib.crc32(content) != crc32:
            what = f"sample {index:,} is damaged: it differs from what was packed"
            raise DataFailed(what, where=where, fix=_FETCH_AGAIN)
        return shard, offset, content

    def _value(self, content: bytes, member: Member, shard: str) -> Any:
        own = self._decode.get(member.extension) or self._decode.get(member.extension.rpartition(".")[2])
        place = f"{shard}, byte {member.offset:,}"
        if own is not None:
            try:
                return own(content)
            except Exception as error:
                error.add_note(f"while decoding member {member.name!r} of {place}")
                raise
        try:
            return decoded(member.extension, content)
        except ValueError as error:
            what = f"member {member.name!r} cannot be decoded: {error}"
            raise DataFailed(what, where=place, fix=_FETCH_AGAIN) from error

    def __getstate__(self) -> dict[str, Any]:
        """For a worker process that starts as a new Python: it opens the files and maps the index itself."""
        state = self.__dict__ | {"_opened": None}
        return state if self._folder is None else state | {"_index": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._opened = lru_cache(MOST_OPEN)(_OpenFile)
        if self._folder is not None:
            self._index = open_index(self._folder)


class _OpenFile:
    def __init__(self, path: Path) -> None:
        self._file = open_regular(path)
        self.descriptor = self._file.fileno()

    def __del__(self) -> None:
        if hasattr(self, "_file"):
            self._file.close()


def _found(shards: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> tuple[Path | None, list[Path]]:
    """The folder, if it has an index, or else the shards."""
    if not isinstance(shards, str | os.PathLike):
        return None, [Path(path) for path in shards]
    path = Path(shards)
    if path.exists() and not path.is_dir():
        return None, [path]
    if (path / MANIFEST).exists():
        return path, []
    found = sorted(path.glob("*.tar"))
    if not found:
        what = "holds no .tar file" if path.is_dir() else "there is no such file or folder"
        raise DataFailed(what, where=str(path), fix="name a folder of shards; hasten pack makes one")
    return None, found


def _wanted(names: tuple[str, ...], sample: list[Member], shard: str) -> Member:
    for member in sample:
        if member.extension in names:
            return member
    what = f"sample {sample[0].key!r} has no {' and no '.join(names)}; it has {[member.extension for member in sample]}"
    raise DataFailed(what, where=f"{shard}, byte {sample[0].start:,}", fix="name the members that all samples have")
