"""What `hasten doctor` has found, and where."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Severity(Enum):
    """How much is at stake where it could not be measured."""

    WRONG = "wrong"  # it changes what is learned
    SLOW = "slow"
    STYLE = "outdated"


class Safety(Enum):
    """Of a change that --fix makes. SAFE: the program computes the same. UNSAFE: it may not, so a person must agree."""

    SAFE = "safe"
    UNSAFE = "unsafe"


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """line, column: from 1, of its first character; end_line, end_column: behind its last."""

    code: str
    rule: str
    path: str
    line: int
    column: int
    end_line: int
    end_column: int
    severity: Severity
    message: str
    fix: str
    safety: Safety | None  # None where only a person can mend it
    technique: str | None
