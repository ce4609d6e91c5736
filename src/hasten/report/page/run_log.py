"""What a run left behind: its plan, and what was logged.

A log can end anywhere, and a resumed run appends to the same file. So a line that is cut off is skipped and counted,
and the later record of a step counts. A number that is not finite is written as a text, which float understands.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from hasten.errors import Misconfigured
from hasten.facts.events import Evaluated, Finished, Noticed, Preparing, Started, Trained
from hasten.facts.plan import Plan
from hasten.facts.plan_file import read_plan
from hasten.regular_files import read_regular, unreadable

KINDS = {kind.__name__.lower(): kind for kind in (Preparing, Started, Trained, Evaluated, Noticed, Finished)}
LARGEST_BYTES = 1 << 30


@dataclass(frozen=True, kw_only=True, slots=True)
class RunLog:
    """None and empty stand for what the run has not written."""

    folder: str
    plan: Plan
    started: Started | None = None
    trained: tuple[Trained, ...] = ()  # by step
    evaluated: tuple[Evaluated, ...] = ()
    noticed: tuple[str, ...] = ()
    finished: Finished | None = None
    options: tuple[str, ...] = ()  # --set and -- of its command
    unread: int = 0  # lines of the log that are no event

    @property
    def job(self) -> str:
        return self.started.job if self.started is not None else ""


def read_run(
    folder: Path, options: Sequence[str] = (), progress: Callable[[int, int], object] = lambda done, whole: None
) -> RunLog:
    """options: --set and -- that the run records. progress: called with (lines read, lines).

    Raises Misconfigured when the folder is not that of a run, PlanError when its plan is wrong, StorageFailed when a
    file cannot be read.
    """
    log = folder / "metrics.jsonl"
    if not log.exists():
        what = "is not a run folder: it has no metrics.jsonl"
        raise Misconfigured(what, where=str(folder), fix="name a run folder, such as runs/job-1, or a plan.toml")
    texts, lines = _read(log).splitlines(), list[Any]()
    for text in texts:
        lines.append(event_of(text))
        progress(len(lines), len(texts))
    events, plan = [event for event in lines if event is not None], folder / "plan.toml"
    return RunLog(
        folder=str(folder),
        plan=read_plan(plan) if plan.exists() else Plan(),
        started=_last(events, Started),
        trained=_by_step(events, Trained),
        evaluated=_by_step(events, Evaluated),
        noticed=tuple(dict.fromkeys(event.text for event in events if isinstance(event, Noticed))),
        finished=_last(events, Finished),
        options=tuple(options),
        unread=lines.count(None),
    )


def event_of(line: str) -> Any:
    """The event that a line of the log states; None where it states none that a report shows."""
    try:
        table = json.loads(line)
        return _reader(KINDS[table.pop("event")]).validate_python(table)
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        return None


@cache
def _reader(kind: type[Any]) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def _read(path: Path) -> str:
    try:
        data = read_regular(path, LARGEST_BYTES + 1)
    except OSError as error:
        raise unreadable(path, error) from error
    if len(data) > LARGEST_BYTES:
        what = f"is larger than {LARGEST_BYTES:,} bytes"
        raise Misconfigured(what, where=str(path), fix="check that this is a run's folder")
    return data.decode("utf-8", errors="replace")


def _by_step(events: list[Any], kind: type[Any]) -> tuple[Any, ...]:
    """The last event of each step."""
    found = {event.step: event for event in events if isinstance(event, kind)}
    return tuple(found[step] for step in sorted(found))


def _last(events: list[Any], kind: type[Any]) -> Any:
    return next((event for event in reversed(events) if isinstance(event, kind)), None)
