"""The checkpoints of a run as a person looks at them: which there are, and whether they are whole. Loads without torch.

What is a checkpoint, and what makes it whole, is store.py's to say; this says the same of the same folder, piece by
piece, so that somebody who waits can see how far it has come.
"""

from __future__ import annotations

import hashlib
import re
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from hasten.checkpoint import manifest as manifests
from hasten.checkpoint.digests import PIECE_BYTES, Digest, read_digested
from hasten.checkpoint.files import failure, names_in, read_pieces
from hasten.checkpoint.manifest import Manifest
from hasten.errors import Misconfigured, StorageFailed

FOLDER = "checkpoints"
_NAME = re.compile(r"step-(\d{1,18})(?:\.(\d{1,9}))?")
_OF_A_RUN = (FOLDER, "metrics.jsonl", "plan.toml")

Progress = Callable[[int, int], None]  # bytes done, bytes in all


@dataclass(frozen=True, kw_only=True, slots=True)
class Listed:
    """manifest: None where it cannot be believed. damage: what is wrong, None for one that is whole."""

    path: Path
    step: int
    attempt: int  # 1 for the first one of its step
    manifest: Manifest | None
    damage: str | None


def check_run(folder: Path) -> None:
    """Raises Misconfigured when this is not the folder of a run."""
    if not folder.is_dir() or not any((folder / name).exists() for name in _OF_A_RUN):
        what = "is no folder of a run" if folder.exists() else "there is no such folder"
        raise Misconfigured(what, where=str(folder), fix="name a run folder, such as runs/job-1")


def listed(run: Path, progress: Progress) -> list[Listed]:
    """Every checkpoint of a run, the newest first, after every byte of them was read.

    Raises Misconfigured when this is no run, StorageFailed when its folder cannot be read. One that goes while it is
    looked at, because the run goes on and removes it, is left out.
    """
    check_run(run)
    found = [_with_manifest(run / FOLDER / name, step, attempt) for step, attempt, name in _named(run / FOLDER)]
    whole = sum(each.manifest.bytes for each in found if each.manifest is not None)
    done, seen = 0, list[Listed]()
    for each in found:
        seen.append(_verified(each, lambda size, before=done: progress(before + size, whole)))
        done += each.manifest.bytes if each.manifest is not None else 0
    return [each for each in seen if each.damage is None or each.path.exists()]


def _named(folder: Path) -> list[tuple[int, int, str]]:
    """Step, attempt and name of what has the name of a checkpoint, the newest first."""
    matches = filter(None, map(_NAME.fullmatch, names_in(folder)))
    found = [(int(each[1]), int(each[2] or 1), each[0]) for each in matches]
    return sorted(found, key=lambda each: each[:2], reverse=True)


def _with_manifest(path: Path, step: int, attempt: int) -> Listed:
    try:
        content, _ = read_digested(path / manifests.NAME, manifests.LARGEST_BYTES)
        manifest = manifests.from_json(content)
        if manifest.step != step:
            raise StorageFailed(f"{manifests.NAME} is that of step {manifest.step}")
    except StorageFailed as error:
        return Listed(path=path, step=step, attempt=attempt, manifest=None, damage=_told(manifests.NAME, error))
    return Listed(path=path, step=step, attempt=attempt, manifest=manifest, damage=None)


def _verified(checkpoint: Listed, progress: Callable[[int], None]) -> Listed:
    if checkpoint.manifest is None:
        return checkpoint
    done, damage = 0, None
    for name, expected in checkpoint.manifest.files.items():
        try:
            _compare(checkpoint.path / name, expected, lambda size, before=done: progress(before + size))
        except StorageFailed as error:
            damage = _told(name, error)
            break
        done += expected.bytes
    return Listed(
        path=checkpoint.path,
        step=checkpoint.step,
        attempt=checkpoint.attempt,
        manifest=checkpoint.manifest,
        damage=damage,
    )


def _compare(path: Path, expected: Digest, progress: Callable[[int], None]) -> None:
    try:
        about = path.stat()
    except OSError as error:
        raise failure(f"could not be read: {error.strerror}", path, error) from error
    # Before it is read: what is no file may have no end.
    if not stat.S_ISREG(about.st_mode):
        raise StorageFailed("is no regular file")
    if about.st_size != expected.bytes:
        raise StorageFailed(f"has {about.st_size:,} bytes, and {expected.bytes:,} were written")
    digest, done = hashlib.sha256(), 0
    for piece in read_pieces(path, PIECE_BYTES):
        digest.update(piece)
        done += len(piece)
        progress(done)
    if digest.hexdigest() != expected.sha256:
        raise StorageFailed("was changed after it was written: its digest differs")


def _told(name: str, error: StorageFailed) -> str:
    return error.what if error.what.startswith(name) else f"{name} {error.what}"
