"""Runs that are complete and have kept checkpoints, and what is done to these."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import hasten
from hasten.checkpoint import manifest as manifests
from hasten.checkpoint.digests import digest_of
from hasten.checkpoint.manifest import Manifest
from hasten.checkpoint.store import Checkpoint, Store
from support import small_job

NAME = "jobs_of_tests.py:job"


def complete_run(folder: Path, plan: Any = None, **changes: Any) -> Path:
    """The folder of a run of ten steps that is complete, with checkpoints of the steps 10, 8 and 6 unless an evaluation
    was the best; another job's where fields are changed."""
    saving = hasten.Saving(every_steps=2, keep_last=3)
    hasten.train(small_job(**changes), plan, run_dir=folder, saving=saving, receivers=[], name=NAME)
    return folder


def checkpoints_of(run: Path) -> list[Checkpoint]:
    """The newest first."""
    return Store(run / "checkpoints").found()


def flip(path: Path, position: int = -1) -> None:
    """One bit."""
    data = bytearray(path.read_bytes())
    data[position] ^= 4
    path.write_bytes(data)


def sealed_again(checkpoint: Path, change: Callable[[Manifest], Manifest] = lambda manifest: manifest) -> None:
    """Give a checkpoint a manifest that is true of the files as they are now, changed as a forger would."""
    path = checkpoint / manifests.NAME
    present = manifests.from_json(path.read_bytes())
    files = {name: digest_of(checkpoint / name) for name in present.files}
    path.write_bytes(manifests.to_json(change(replace(present, files=files))))
