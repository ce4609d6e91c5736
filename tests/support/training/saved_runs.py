"""Runs of a small job that are saved and go on, in the process of the test."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import nn

import hasten
from hasten.checkpoint.store import Store
from hasten.facts.events import Event, Noticed, Saved
from support import small_job
from support.training import killed_jobs
from support.training.collected_events import Collected

STEPS = 10


def job(**changes: Any) -> hasten.Job:
    """Ten steps with dropout, each logged."""
    fields: dict[str, Any] = {
        "model": lambda: nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.3), nn.Linear(8, 3)),
        "log_every": 1,
    }
    return small_job(**(fields | changes))


def trained(folder: Path, made: hasten.Job | None = None, **options: Any) -> list[Event]:
    collected = Collected()
    hasten.train(made or job(), run_dir=folder, receivers=[collected], **options)
    return collected.events


def resumed(folder: Path, made: hasten.Job | None = None, **options: Any) -> list[Event]:
    collected = Collected()
    hasten.resume(made or job(), run_dir=folder, receivers=[collected], **options)
    return collected.events


def every(steps: int, **options: Any) -> hasten.Saving:
    return hasten.Saving(every_steps=steps, **options)


def saved_in(folder: Path) -> list[int]:
    return [each.step for each in Store(folder / "checkpoints").found()]


def saves(events: list[Event]) -> list[tuple[int, str]]:
    return [(event.step, event.reason) for event in events if isinstance(event, Saved)]


def notices(events: list[Event]) -> list[str]:
    return [event.text for event in events if isinstance(event, Noticed)]


def check_same(found: Path, wanted: Path) -> None:
    assert killed_jobs.trace(found) == killed_jobs.trace(wanted)
    assert killed_jobs.weights(found) == killed_jobs.weights(wanted)
