"""What a run left behind: its plan, where it ran, and what was measured on the way.

A log can end anywhere, and a run that was interrupted goes on in the same file. So a line that is cut off is left out,
and where steps were trained twice the later record of a step counts. A number that is not finite is written as a text,
which float understands.
"""

from __future__ import annotations

import json
import types
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Union, cast, get_args, get_origin, get_type_hints

from hasten.errors import Misconfigured, StorageFailed
from hasten.facts.events import Evaluated, Finished, Noticed, Preparing, Started, Trained
from hasten.facts.plan import Plan
from hasten.facts.plan_file import read_plan

KINDS: Mapping[str, type[Any]] = {
    kind.__name__.lower(): kind for kind in (Preparing, Started, Trained, Evaluated, Noticed, Finished)
}
LARGEST_BYTES = 1 << 30
LARGEST_ENVIRONMENT = 1 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class RunLog:
    """None and empty stand for what the run has not written."""

    folder: str
    plan: Plan
    environment: Mapping[str, Any]
    started: Started | None = None
    trained: tuple[Trained, ...] = ()  # by step
    evaluated: tuple[Evaluated, ...] = ()
    noticed: tuple[str, ...] = ()
    finished: Finished | None = None
    unread: int = 0  # lines of the log that are no event

    @property
    def job(self) -> str:
        return self.started.job if self.started is not None else ""


def read_run(folder: Path) -> RunLog:
    """Raises Misconfigured when the folder is not that of a run, PlanError when its plan is wrong, StorageFailed when a
    file cannot be read."""
    log = folder / "metrics.jsonl"
    if not log.is_file():
        what = "is no folder of a run: there is no metrics.jsonl in it"
        raise Misconfigured(what, where=str(folder), fix="name a run folder, such as runs/job-1, or a plan.toml")
    events = list[Any]()
    unread = 0
    for line in _read(log, LARGEST_BYTES).splitlines():
        event = event_of(line)
        unread += event is None
        events += [event] if event is not None else []
    plan = folder / "plan.toml"
    return RunLog(
        folder=str(folder),
        plan=read_plan(plan) if plan.exists() else Plan(),
        environment=_environment(folder / "environment.json"),
        started=_last(events, Started),
        trained=tuple(
            sorted({event.step: event for event in _all(events, Trained)}.values(), key=lambda event: event.step)
        ),
        evaluated=tuple(
            sorted({event.step: event for event in _all(events, Evaluated)}.values(), key=lambda event: event.step)
        ),
        noticed=tuple(dict.fromkeys(event.text for event in _all(events, Noticed))),
        finished=_last(events, Finished),
        unread=unread,
    )


def event_of(line: str) -> Any:
    """The event that a line of the log states; None where it states none that a report shows."""
    try:
        table = json.loads(line)
        kind = KINDS[table.pop("event")]
        hints = get_type_hints(kind)
        return kind(**{each.name: _checked(hints[each.name], table[each.name]) for each in fields(kind)})
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        return None


def _checked(kind: Any, value: Any) -> Any:
    """The value, when it is what its annotation says; else TypeError or ValueError."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return None if value is None else _checked(next(each for each in inner if each is not types.NoneType), value)
    if kind is float:
        return float(value if isinstance(value, str) else _of((int, float), value))
    if origin is tuple:
        return tuple(_checked(inner[0], item) for item in _of(list, value))
    if origin is not None:  # a mapping
        return {_of(str, key): _checked(inner[1], item) for key, item in _of(dict, value).items()}
    return _of(kind, value)


def _of(kind: Any, value: Any) -> Any:
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise TypeError
    return value


def _environment(path: Path) -> Mapping[str, Any]:
    if not path.is_file():
        return {}
    try:
        found = json.loads(_read(path, LARGEST_ENVIRONMENT))
    except (ValueError, RecursionError):
        raise Misconfigured("is no JSON", where=str(path), fix="restore the file, or remove it") from None
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {}


def _read(path: Path, most: int) -> str:
    try:
        with open(path, "rb") as file:
            data = file.read(most + 1)
    except OSError as error:
        reason = error.strerror or str(error)
        raise StorageFailed(f"cannot be read: {reason}", where=str(path), fix="make the file readable") from error
    if len(data) > most:
        raise Misconfigured(f"is larger than {most:,} bytes", where=str(path), fix="check that this is a run's folder")
    return data.decode("utf-8", errors="replace")


def _all(events: list[Any], kind: type[Any]) -> list[Any]:
    return [event for event in events if isinstance(event, kind)]


def _last(events: list[Any], kind: type[Any]) -> Any:
    return next((event for event in reversed(events) if isinstance(event, kind)), None)
