"""One checkpoint on the disk: its manifest, whether every byte is as it was written, and its content.

Only read() loads torch, so that a run's checkpoints can be listed at once.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from hasten.checkpoint import manifest as manifests
from hasten.checkpoint.digests import Digest, digest_of, in_threads, read_digested
from hasten.checkpoint.files import names_in
from hasten.checkpoint.manifest import PIECES, STATE, Manifest, holds_parts, holds_tensors
from hasten.checkpoint.sealed_json import json_object
from hasten.errors import Damaged, StorageFailed

_NO_FILE = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENODEV)  # the last: a pipe, or a device
_CHECKPOINT = re.compile(r"step-(\d{1,18})(?:\.(\d{1,9}))?")

Made = TypeVar("Made")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A folder with the name of a checkpoint; verify() finds out whether it is one.

    attempt: 1 for the first one of its step.
    """

    path: Path
    step: int
    attempt: int = 1

    def manifest(self) -> Manifest:
        """Raises Damaged when it is missing, damaged, or another step's; StorageFailed when it cannot be read."""
        content, _ = _named(manifests.NAME, lambda: read_digested(self.path / manifests.NAME, manifests.LARGEST_BYTES))
        found = manifests.from_json(content)
        if found.step != self.step:
            raise Damaged(f"{manifests.NAME} belongs to step {found.step}")
        return found

    def verify(self, threads: int = 1, reads: Callable[[str], bool] = lambda name: True) -> Manifest:
        """Read every byte and compare it with the manifest.

        reads: whether to read the file of this name; the manifest is always read.
        Raises Damaged when a file is missing or was changed; StorageFailed when one cannot be read.
        """
        found = self.manifest()
        in_threads(lambda name: self._check(name, found.files[name]), filter(reads, found.files), threads)
        return found

    def _check(self, name: str, expected: Digest) -> None:
        _compare(name, expected, _named(name, lambda: digest_of(self.path / name, expected.bytes)))

    def _content(self, name: str, expected: Digest) -> bytes:
        content, present = _named(name, lambda: read_digested(self.path / name, expected.bytes))
        _compare(name, expected, present)
        return content

    def read(self, progress: Callable[[int, int], object] = lambda done, whole: None) -> Loaded:
        """Read and verify everything. A tensor that was saved in parts is a rank_files.Pieced, which is read later.

        progress: called with (bytes read, bytes) after each file.

        Raises as verify does.
        """
        from hasten.checkpoint.safetensors_files import tensors_in
        from hasten.checkpoint.sharded import piece_table
        from hasten.checkpoint.sharded.rank_files import opened, pieced
        from hasten.checkpoint.state_tree import rebuilt

        found = self.manifest()
        if STATE not in found.files:
            raise Damaged(f"{manifests.NAME} does not list {STATE}")
        tensors, parts, texts = dict[str, Any](), dict[str, Any](), dict[str, bytes]()
        done = 0
        for name, digest in found.files.items():
            if holds_tensors(name):
                tensors |= tensors_in(self._content(name, digest))
            elif holds_parts(name):
                self._check(name, digest)
            else:
                texts[name] = self._content(name, digest)
            done += digest.bytes
            progress(done, found.bytes)
        if PIECES in texts:
            parts |= opened(self.path, filter(holds_parts, found.files))
            tensors |= pieced(parts, piece_table.from_json(texts[PIECES]))
        trees = json_object(texts[STATE], STATE)
        return Loaded(self, found, {name: rebuilt(tree, tensors) for name, tree in trees.items()}, parts.clear)


@dataclass(frozen=True, slots=True)
class Loaded:
    """A verified checkpoint and its content.

    states: by name.
    close: closes the files that tensors in pieces are read from; no such tensor can be read afterwards. Until then a
        removed checkpoint still takes space on the disk.
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


def _named(name: str, work: Callable[[], Made]) -> Made:
    """The result for a file; an error gets the file's name. Raises Damaged where there is no such file."""
    try:
        return work()
    except StorageFailed as error:
        cause = error.__cause__
        gone = isinstance(cause, OSError) and cause.errno in _NO_FILE
        raise (Damaged if gone else StorageFailed)(f"{name} {error.what}", where=error.where, fix=error.fix) from error


def _compare(name: str, expected: Digest, present: Digest) -> None:
    if present.bytes != expected.bytes:
        many = f"{present.bytes:,}" if present.bytes < expected.bytes else "more"
        raise Damaged(f"{name} has {many} bytes, but {expected.bytes:,} were written")
    if present.sha256 != expected.sha256:
        raise Damaged(f"{name} was changed after it was written: its digest differs")
