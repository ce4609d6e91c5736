"""A finding of `hasten doctor`, and its place."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Literal

_SAME_OF_SOURCES = {"H601": "H417"}  # useless_bias, bias_before_norm


class Severity(Enum):
    """How much a finding matters, most first, where its cost was not measured.

    A run that fails or learns something wrong is wasted, however fast it is. So these two come before all costs.
    """

    FAILS = "fails"  # the run may fail
    WRONG = "wrong"  # it changes what is learned
    COSTLY = "costly"  # it can take most of every step
    SLOW = "slow"  # it takes a part of every step, or delays every epoch
    SLIGHT = "slight"  # it takes little
    STYLE = "outdated"
    ONCE = "once"  # it costs something once, before training


class Safety(Enum):
    """Of a change by --fix. SAFE: the program computes the same. UNSAFE: it may not, so a person must agree."""

    SAFE = "safe"
    UNSAFE = "unsafe"


@dataclass(frozen=True, kw_only=True, slots=True)
class Price:
    """An upper bound of a finding's cost. seconds: that the fix can save of the whole; whole_seconds: of that now.
    whole: "epoch", "run", "step", or "turn" for what happens between two epochs."""

    seconds: float
    whole_seconds: float
    whole: Literal["epoch", "run", "step", "turn"] = "epoch"

    @property
    def most_gain(self) -> float:
        """How many times as fast the whole can become; infinite where it takes no other time."""
        left = self.whole_seconds - self.seconds
        return self.whole_seconds / left if left > 0 else math.inf


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """
    path, line, column: of its source, counted from 1; "" and 0 without one. end_line, end_column: behind its end.
    source: its first line.
    part: of a model or a run that it is about; "" for a source alone.
    """

    code: str
    rule: str
    severity: Severity
    message: str
    fix: str
    path: str = ""
    cell: int | None = None  # of a notebook, from 1; lines count from its start
    line: int = 0
    column: int = 0
    end_line: int = 0
    end_column: int = 0
    source: str = ""
    part: str = ""
    price: Price | None = None  # None where it was not measured
    safety: Safety | None = None  # None where only a person can fix it
    technique: str | None = None
    gpu_only: bool = False  # without an accelerator it costs nothing

    @property
    def place(self) -> str:
        if not self.path:
            return self.part
        inside = f"cell {self.cell}:" if self.cell is not None else ""
        column = f":{self.column}" if self.column else ""
        return f"{self.path}:{inside}{self.line}{column}"


def without_repeats(findings: Sequence[Finding], sources: Collection[str]) -> list[Finding]:
    """Without findings in sources that a finding in the model confirms."""
    known = {_SAME_OF_SOURCES[each.code] for each in findings if each.code in _SAME_OF_SOURCES}
    return [each for each in findings if not (each.code in known and each.path in sources)]


def ranked(findings: Iterable[Finding]) -> list[Finding]:
    """What fails or spoils the run, then the most expensive, then those without a price by severity and place."""
    stakes = list(Severity)
    wasted = stakes.index(Severity.COSTLY)  # the first of those that only cost time

    def rank(finding: Finding) -> tuple[int, float, int, str, int, int, str]:
        seconds = finding.price.seconds if finding.price is not None else 0.0
        stake = stakes.index(finding.severity)
        return min(stake, wasted), -seconds, stake, finding.path, finding.line, finding.column, finding.code

    return sorted(findings, key=rank)
