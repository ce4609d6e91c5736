"""What `hasten doctor` has found, and where."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

_SAME_OF_SOURCES = {"H601": "H417"}  # useless_bias, bias_before_norm


class Severity(Enum):
    """How much is at stake where it could not be measured."""

    FAILS = "fails"  # the run may not come to its end
    WRONG = "wrong"  # it changes what is learned
    SLOW = "slow"
    STYLE = "outdated"


class Safety(Enum):
    """Of a change that --fix makes. SAFE: the program computes the same. UNSAFE: it may not, so a person must agree."""

    SAFE = "safe"
    UNSAFE = "unsafe"


@dataclass(frozen=True, kw_only=True, slots=True)
class Price:
    """What a finding costs at most: an upper bound. seconds: of an epoch, that mending it can save. epoch_seconds: that
    one takes now."""

    seconds: float
    epoch_seconds: float

    @property
    def most_gain(self) -> float:
        """How many times as fast an epoch can be without it; infinite where nothing else is in the way."""
        left = self.epoch_seconds - self.seconds
        return self.epoch_seconds / left if left > 0 else math.inf


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """path, line, column: where it is in a source, from 1; end_line, end_column: behind its last character; "" and 0
    where it is in none. source: its first line. part: of a model or a run, that it is about; "" of a source alone."""

    code: str
    rule: str
    severity: Severity
    message: str
    fix: str
    path: str = ""
    cell: int | None = None  # of a notebook, from 1; lines are counted in it
    line: int = 0
    column: int = 0
    end_line: int = 0
    end_column: int = 0
    source: str = ""
    part: str = ""
    price: Price | None = None  # None where it was not measured
    safety: Safety | None = None  # None where only a person can mend it
    technique: str | None = None

    @property
    def place(self) -> str:
        if not self.path:
            return self.part
        inside = f"cell {self.cell}:" if self.cell is not None else ""
        column = f":{self.column}" if self.column else ""
        return f"{self.path}:{inside}{self.line}{column}"


def told_once(findings: Sequence[Finding], sources: Collection[str]) -> list[Finding]:
    """Without what sources may mean, where a look at the model that they make tells what is so."""
    known = {_SAME_OF_SOURCES[each.code] for each in findings if each.code in _SAME_OF_SOURCES}
    return [each for each in findings if not (each.code in known and each.path in sources)]


def ranked(findings: Iterable[Finding]) -> list[Finding]:
    """What may end the run, then the dearest first, then what was not measured: by what is at stake, and in the order
    of the source."""
    stakes = list(Severity)

    def rank(finding: Finding) -> tuple[bool, float, int, str, int, int, str]:
        seconds = finding.price.seconds if finding.price is not None else 0.0
        fails, stake = finding.severity is Severity.FAILS, stakes.index(finding.severity)
        return not fails, -seconds, stake, finding.path, finding.line, finding.column, finding.code

    return sorted(findings, key=rank)
