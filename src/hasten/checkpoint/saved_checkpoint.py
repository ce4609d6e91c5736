"""One checkpoint on the disk: what its manifest says, whether it is whole, and what is in it.

Only read() loads torch, so that the checkpoints of a run can be listed at once.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from hasten.checkpoint import manifest as manifests
from hasten.checkpoint.digests import Digest, at_once, digest_of, read_digested
from hasten.checkpoint.files import names_in
from hasten.checkpoint.manifest import Manifest
from hasten.checkpoint.sealed_json import json_object
from hasten.checkpoint.sharded import piece_table
from hasten.errors import Damaged, StorageFailed

STATE = "state.json"
TENSORS = "tensors.safetensors"  # the first file of tensors, and mostly the only one
_NO_FILE = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.EINVAL)  # the last: a pipe, or a device
_CHECKPOINT = re.compile(r"step-(\d{1,18})(?:\.(\d{1,9}))?")
_HOLDS_TENSORS = re.compile(r"tensors(-[0-9]{1,6})?\.safetensors")

Made = TypeVar("Made")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A folder that has the name of a checkpoint. What is in it, its manifest says; verify() finds out.

    attempt: 1 for the first one of its step.
    """

    path: Path
    step: int
    attempt: int = 1

    def manifest(self) -> Manifest:
        """Raises Damaged when it is missing, damaged, or another checkpoint's; StorageFailed when it cannot be read."""
        content, _ = _named(manifests.NAME, lambda: read_digested(self.path / manifests.NAME, manifests.LARGEST_BYTES))
        found = manifests.from_json(content)
        if found.step != self.step:
            raise Damaged(f"{manifests.NAME} is that of step {found.step}")
        return found

    def verify(
        self,
        threads: int = 1,
        seen: Callable[[int], None] = lambda size: None,
        looks_at: Callable[[str], bool] = lambda name: True,
    ) -> Manifest:
        """Read every byte. Raises Damaged when a file is missing, or is not what was written; StorageFailed when one
        cannot be read, which says nothing of what is in it.

        seen: is told the size of every piece that was read, by whichever thread. looks_at: whether a file of this name
        is read; the manifest always is.
        """
        found = self.manifest()
        at_once(lambda name: self._check(name, found.files[name], seen), list(filter(looks_at, found.files)), threads)
        return found

    def _check(self, name: str, expected: Digest, seen: Callable[[int], None] = lambda size: None) -> None:
        _compare(name, expected, _named(name, lambda: digest_of(self.path / name, expected.bytes, seen)))

    def read(self) -> Loaded:
        """All of it, and verified: what is returned is what was written. A tensor in pieces is a part_files.Pieced,
        which reads it when it is put together. Raises as verify does."""
        from hasten.checkpoint.safetensors_files import tensors_in
        from hasten.checkpoint.sharded.rank_files import holds_parts, opened, pieced
        from hasten.checkpoint.state_tree import rebuilt

        found = self.manifest()
        if STATE not in found.files:
            raise Damaged(f"{manifests.NAME} lists no {STATE}")

        def content(name: str) -> bytes:
            expected = found.files[name]
            read, present = _named(name, lambda: read_digested(self.path / name, expected.bytes))
            _compare(name, expected, present)
            return read

        tensors, parts = dict[str, Any](), dict[str, Any]()
        for name in found.files:
            if holds_tensors(name):
                tensors |= tensors_in(content(name))
            elif holds_parts(name):
                self._check(name, found.files[name])
            elif name not in (STATE, piece_table.NAME):
                content(name)
        if piece_table.NAME in found.files:
            table = piece_table.from_json(content(piece_table.NAME))
            parts |= opened(self.path, filter(holds_parts, found.files))
            tensors |= pieced(parts, table)
        trees = json_object(content(STATE), STATE)
        return Loaded(self, found, {name: rebuilt(tree, tensors) for name, tree in trees.items()}, parts.clear)


@dataclass(frozen=True, slots=True)
class Loaded:
    """A checkpoint that was found whole, and what is in it.

    states: by name. close: lets the files go that tensors in pieces are read from, so that their space on the disk is
        free when they are removed; no such tensor is read any more.
    """

    checkpoint: Checkpoint
    manifest: Manifest
    states: Mapping[str, Any]
    close: Callable[[], None]


def checkpoints_in(folder: Path) -> list[Checkpoint]:
    """Every checkpoint by its name, the newest first, unverified. Raises StorageFailed."""
    matches = filter(None, map(_CHECKPOINT.fullmatch, names_in(folder)))
    checkpoints = [Checkpoint(folder / each[0], int(each[1]), int(each[2] or 1)) for each in matches]
    return sorted(checkpoints, key=lambda each: (each.step, each.attempt), reverse=True)


def holds_tensors(name: str) -> bool:
    """Whether a checkpoint's file of this name holds tensors."""
    return _HOLDS_TENSORS.fullmatch(name) is not None


def _named(name: str, work: Callable[[], Made]) -> Made:
    """What the work makes of a file; its failure with the file's name before it. Raises Damaged where there is none."""
    try:
        return work()
    except StorageFailed as error:
        cause = error.__cause__
        gone = isinstance(cause, OSError) and cause.errno in _NO_FILE
        raise (Damaged if gone else StorageFailed)(f"{name} {error.what}", where=error.where, fix=error.fix) from error


def _compare(name: str, expected: Digest, present: Digest) -> None:
    if present.bytes != expected.bytes:
        many = f"{present.bytes:,}" if present.bytes < expected.bytes else "more"
        raise Damaged(f"{name} has {many} bytes, and {expected.bytes:,} were written")
    if present.sha256 != expected.sha256:
        raise Damaged(f"{name} was changed after it was written: its digest differs")
