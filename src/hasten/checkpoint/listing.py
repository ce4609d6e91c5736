"""A run's checkpoints as `hasten checkpoints` shows them, each verified. Loads no torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from hasten.checkpoint.manifest import Manifest, OfAnotherVersion
from hasten.checkpoint.saved_checkpoint import Checkpoint, checkpoints_in
from hasten.errors import Misconfigured, StorageFailed

FOLDER = "checkpoints"
_OF_A_RUN = (FOLDER, "metrics.jsonl", "plan.toml")


@dataclass(frozen=True, kw_only=True, slots=True)
class Listed:
    """manifest: None where it is damaged. damage: what is wrong; None for a verified checkpoint. of_another_version:
    another version of hasten saved it, so that this one cannot say whether it is damaged."""

    path: Path
    step: int
    attempt: int  # 1 for the first one of its step
    manifest: Manifest | None
    damage: str | None
    of_another_version: bool


def check_run(folder: Path) -> None:
    """Raises Misconfigured when this is not the folder of a run."""
    if not folder.is_dir() or not any((folder / name).exists() for name in _OF_A_RUN):
        what = "is not a run folder" if folder.exists() else "there is no such folder"
        raise Misconfigured(what, where=str(folder), fix="name a run folder, such as runs/job-1")


def listed(run: Path, progress: Callable[[int, int], None]) -> list[Listed]:
    """Every checkpoint of a run, the newest first, after every byte was read.

    progress: called with (checkpoints read, checkpoints). A checkpoint that the run removes meanwhile is skipped.
    Raises Misconfigured when this is no run, StorageFailed when its folder cannot be read.
    """
    check_run(run)
    found, seen = checkpoints_in(run / FOLDER), list[Listed]()
    for checkpoint in found:
        seen.append(_verified(checkpoint))
        progress(len(seen), len(found))
    return [each for each in seen if each.damage is None or each.path.exists()]


def _verified(checkpoint: Checkpoint) -> Listed:
    manifest = damage = None
    another = False
    try:
        manifest = checkpoint.manifest()
        checkpoint.verify()
    except StorageFailed as error:
        damage, another = error.what, isinstance(error, OfAnotherVersion)
    return Listed(
        path=checkpoint.path,
        step=checkpoint.step,
        attempt=checkpoint.attempt,
        manifest=manifest,
        damage=damage,
        of_another_version=another,
    )
