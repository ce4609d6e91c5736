"""A check put to a planted fault."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from shape.source import Fault, Source

STEP = "src/hasten/training/step.py"


def found(check: Callable[[Source], Iterable[Fault]], text: str, path: str = STEP) -> list[int]:
    """The lines in which the check finds a fault in this text."""
    return [fault.line for fault in check(Source(path, text))]
