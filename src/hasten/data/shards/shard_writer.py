"""Writing shards: a folder of class folders, or any map-style data set, as WebDataset tar files with an index.

The same data, seed and shard size give the same bytes: members are numbered, and carry no time, user or machine. The
samples are shuffled once, because reading only shuffles what lies near (see shard_order.py).

Everything is written into a folder beside the target, forced to the disk, and renamed last. So the target is missing or
whole after a kill or a power cut at any instant. The next packing removes what an interrupted one left. The lock
against a second packing lies beside both folders, as ".<folder>.lock".

A sample that draws random numbers ends the packing, and some are read twice before it begins (see repeated_reading.py).
"""

from __future__ import annotations

import hashlib
import json
import os
import zlib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hasten.checkpoint.files import (
    NewFile,
    check_writable,
    make_folder,
    remove_file,
    remove_folder,
    rename_folder,
    write_atomically,
)
from hasten.checkpoint.locks.file_lock import locked
from hasten.data.cache.repeated_reading import SteadyReader, Unreadable
from hasten.data.images.image_files import read_file, scan
from hasten.data.order.randomness import derived, undisturbed
from hasten.data.order.sample_order import sorted_by_hash
from hasten.data.shards.shard_index import MANIFEST, ROWS, SCHEMA, Progress, packed_row
from hasten.data.shards.shard_members import encoded
from hasten.data.shards.tar_reader import END, LARGEST_MEMBER, MOST_MEMBERS, packed
from hasten.errors import DataFailed, Misconfigured, StorageFailed

_UNFINISHED = ".unfinished"  # behind the name of a folder that is still being packed
_PACK = int.from_bytes(b"pack", "big")


class ImagesInFolders:
    """A folder that holds one folder of images for each class: the file unchanged, and the number of its class. Samples
    are numbered as hasten.ImageFolder numbers them. Raises DataFailed for a folder of another kind."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.classes, self._names, self._labels = scan(root)

    def __len__(self) -> int:
        return len(self._names)

    def members(self, index: int) -> dict[str, bytes]:
        path = self.root / self._names[index]
        try:
            content = read_file(str(path))
        except OSError as error:
            raise DataFailed(f"cannot be read: {error.strerror}", where=str(path), fix="check the file") from error
        return {path.suffix[1:].lower(): content, "cls": str(int(self._labels[index])).encode()}


class Samples:
    """A map-style data set, each sample as shard_members.encoded makes members of it."""

    root: Path | None = None
    classes: Sequence[str] | None = None

    def __init__(self, dataset: Any) -> None:
        is_map_style = hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")
        if isinstance(dataset, str | bytes | tuple | dict) or not is_map_style:
            what = f"a {type(dataset).__name__} is not a map-style data set"
            raise Misconfigured(what, fix="return an object with __getitem__ and __len__, such as a torch Dataset")
        self._reader = SteadyReader(dataset, stored_as=_members)

    def __len__(self) -> int:
        return len(self._reader.dataset)

    def check_spread(self) -> None:
        """Raises DataFailed when one of some samples, which are read twice, is not the same."""
        try:
            self._reader.check_spread()
        except Unreadable as bad:
            raise bad.error() from None

    def members(self, index: int) -> dict[str, bytes]:
        try:
            return _members(index, self._reader.read(index))
        except Unreadable as bad:
            raise bad.error() from None


def _members(index: int, sample: Any) -> dict[str, bytes]:
    try:
        return encoded(sample)
    except ValueError as error:
        raise DataFailed(f"sample {index} cannot be packed: {error}") from error


Packable = ImagesInFolders | Samples
"""What can be packed: samples, each as members (extension to content). root: their folder; None if unknown."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Packed:
    samples: int
    shards: int
    bytes: int
    form: tuple[str, ...] | None  # of all samples, for hasten.Shards; None where they have different members


def pack(
    data: Packable, folder: Path, *, shard_bytes: int, seed: int | None = 0, progress: Progress | None = None
) -> Packed:
    """Write all samples as shards of about `shard_bytes` into `folder`, which must be empty or missing, and outside of
    the folder that is packed.

    seed: of the order that samples are written in; None keeps theirs. progress: called with (samples done, samples).

    Raises Misconfigured when `folder` holds something, lies in the folder that is packed, or is being packed into;
    DataFailed or UserCodeFailed when there is no sample, or one that cannot be read or written; StorageFailed. Nothing
    of the folder is left then.
    """
    _check_target(data, folder)
    if len(data) == 0:
        raise DataFailed("there are 0 samples", fix="check the path and the filter of the data set")
    folder = Path(os.path.abspath(folder))  # which has a name also where it is "."
    make_folder(folder.parent)
    work, lock = folder.with_name(folder.name + _UNFINISHED), folder.with_name(f".{folder.name}.lock")
    with locked(lock, None) as held:
        if not held:
            raise Misconfigured("another process is packing into it", where=str(folder), fix="wait until it is done")
        try:
            remove_folder(work)  # of a packing that was interrupted
            make_folder(work)
            check_writable(work)
            with undisturbed():
                if isinstance(data, Samples):
                    data.check_spread()
                done = _write(data, work, shard_bytes, seed, progress)
            rename_folder(work, folder)
        finally:
            with suppress(StorageFailed):  # the next packing removes it, and the first failure is the one to raise
                remove_folder(work)
            with suppress(StorageFailed):
                remove_file(lock)  # last: from here on another process may pack
    return done


def _check_target(data: Packable, folder: Path) -> None:
    if data.root is not None and folder.resolve().is_relative_to(data.root.resolve()):
        what = "it is inside the folder to be packed, and would be read as another class"
        fix = f"name a folder outside of it, such as {data.root.resolve()}-shards"
        raise Misconfigured(what, where=str(folder), fix=fix)
    if os.path.lexists(folder) and (not folder.is_dir() or any(folder.iterdir())):
        raise Misconfigured("it exists and is not empty", where=str(folder), fix="name a folder that is empty or new")


class _Written:
    """The shards of one packing while they are written."""

    def __init__(self, folder: Path, shard_bytes: int) -> None:
        self._folder, self._shard_bytes = folder, shard_bytes
        self.shards: list[dict[str, Any]] = []
        self.forms = set[tuple[str, ...]]()  # the extensions of each sample
        self._rows = _Digested(folder / ROWS)
        self._shard: _Digested | None = None
        self._samples = 0  # in that shard

    def add(self, extensions: tuple[str, ...], piece: bytes) -> None:
        self.forms.add(extensions)
        if self._shard is not None and self._shard.bytes + len(piece) + len(END) > self._shard_bytes:
            self._close_shard()
        if self._shard is None:
            self._shard, self._samples = _Digested(self._folder / f"shard-{len(self.shards):06}.tar"), 0
        self._rows.write(packed_row(self._shard.bytes, len(piece), len(self.shards), zlib.crc32(piece)))
        self._shard.write(piece)
        self._samples += 1

    def finish(self, classes: Sequence[str] | None) -> None:
        self._close_shard()
        manifest = {
            "schema": SCHEMA,
            "samples": sum(shard["samples"] for shard in self.shards),
            "classes": classes and [*classes],
            "shards": self.shards,
            "index": self._rows.finish(),
        }
        write_atomically(self._folder / MANIFEST, (json.dumps(manifest, indent=1) + "\n").encode())

    def abandon(self) -> None:
        self._rows.file.abandon()
        if self._shard is not None:
            self._shard.file.abandon()

    def _close_shard(self) -> None:
        if self._shard is not None:
            self._shard.write(END)
            name = f"shard-{len(self.shards):06}.tar"
            self.shards.append({"name": name, "samples": self._samples} | self._shard.finish())
            self._shard = None


class _Digested:
    """A new file, its size and its digest while it is written."""

    def __init__(self, path: Path) -> None:
        self.file, self.bytes, self._digest = NewFile(path), 0, hashlib.sha256()

    def write(self, data: bytes) -> None:
        self.file.write(data)
        self._digest.update(data)
        self.bytes += len(data)

    def finish(self) -> dict[str, Any]:
        self.file.finish()
        return {"bytes": self.bytes, "sha256": self._digest.hexdigest()}


def _write(data: Packable, folder: Path, shard_bytes: int, seed: int | None, progress: Progress | None) -> Packed:
    count = len(data)
    order = np.arange(count) if seed is None else sorted_by_hash(count, derived(seed, _PACK))
    digits, written = max(len(str(count - 1)), 6), _Written(folder, shard_bytes)
    try:
        for done, index in enumerate(map(int, order), start=1):
            members = data.members(index)
            written.add(tuple(members), _piece(f"{index:0{digits}}", members, index))
            if progress is not None:
                progress(done, count)
        written.finish(data.classes)
    except BaseException:
        written.abandon()
        raise
    return Packed(
        samples=count,
        shards=len(written.shards),
        bytes=sum(shard["bytes"] for shard in written.shards),
        form=written.forms.pop() if len(written.forms) == 1 else None,
    )


def _piece(key: str, members: dict[str, bytes], index: int) -> bytes:
    """The bytes of a sample in a shard."""
    if len(members) > MOST_MEMBERS or sum(map(len, members.values())) > LARGEST_MEMBER:
        what = f"sample {index:,} has more than {MOST_MEMBERS} members, or more than {LARGEST_MEMBER:,} bytes"
        raise DataFailed(what, fix="drop what training does not need")
    return b"".join(packed(f"{key}.{extension}", content) for extension, content in members.items())
