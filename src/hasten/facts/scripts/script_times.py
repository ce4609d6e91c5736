"""How long the parts of a training script take on this machine, as a trial of some of its steps has timed them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hasten.facts.scripts.seen import Length


@dataclass(frozen=True, kw_only=True, slots=True)
class Sync:
    """A line at which the host waits for a GPU, so many times in a step."""

    file: str
    line: int
    times: float


@dataclass(frozen=True, kw_only=True, slots=True)
class ScriptTimes:
    """Seconds. start: of the process until its first step, and what that takes beyond others. step: the median of so
    many windows of so many steps; shortest, longest: of these windows, a step of each. parts: of a step, by the fields
    of facts.trials.Budget. turn: between two epochs, beyond a step; None where it was not timed, and then why.
    interruptions: of a step, its share of what the script evaluates and saves within an epoch. others: share of the CPU
    that other programs used."""

    start: float
    step: float
    shortest: float
    longest: float
    windows: int
    window_steps: int
    parts: Mapping[str, float]
    turn: float | None
    no_turn: str
    interruptions: float
    syncs: tuple[Sync, ...]
    others: float

    def turns(self, length: Length) -> float | None:
        """Of the whole run; None where that is not known."""
        return None if self.turn is None or length.steps is None else self.turn * (length.epochs or 0)

    def run(self, length: Length) -> float | None:
        """The whole run; None where its length is not known."""
        if length.steps is None:
            return None
        return self.start + (self.step + self.interruptions) * length.steps + (self.turns(length) or 0.0)
