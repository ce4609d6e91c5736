"""What a rule about running jobs is: it decides from a look that was taken, and measures nothing itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from hasten.doctor.contract import Paged
from hasten.facts.finding import Price, Severity
from hasten.facts.profiles import CompilerNote, Line, RunProfile

MUCH = 0.05  # of a step: what may gain less is not told


class FoundInRun(NamedTuple):
    """line: of the user's code; None where it is none of it. step_seconds: that mending it can save of each step, at
    most; None where it was not measured in seconds. fix: where the rule's own words do not say it."""

    message: str
    step_seconds: float | None
    line: Line | CompilerNote | None = None
    fix: str = ""
    epoch_seconds: float = 0.0  # that it can save of an epoch beside its steps


@dataclass(frozen=True, kw_only=True)
class RunRule(Paged):
    code: str
    name: str
    severity: Severity
    fix: str
    check: Callable[[RunProfile], Iterator[FoundInRun]]
    technique: str | None = None


def price_of(look: RunProfile, found: FoundInRun) -> Price | None:
    """At most all of an epoch."""
    if found.step_seconds is None:
        return None
    seconds = found.step_seconds * look.epoch_steps + found.epoch_seconds
    return Price(seconds=min(seconds, look.epoch_seconds), epoch_seconds=look.epoch_seconds)
