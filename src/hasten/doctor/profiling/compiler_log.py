"""What torch's compiler says while it works: where it falls back to Python, and what it compiles again.

Dynamo logs both with the line of the user's code, on loggers of their own (torch._logging, "graph_breaks" and
"recompiles"); they are listened to, and print nothing.
"""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

from torch._logging._internal import log_state

_MODULES = ("symbolic_convert", "convert_frame", "exc", "guards")
_KINDS = ("graph_breaks", "recompiles")
_BREAK = re.compile(
    r"Graph break.* in user code at (?P<path>.+):(?P<line>\d+)\s+"
    r"(?:Graph Break )?Reason:\s*(?P<why>[^\n]*)\n*(?P<more>[^\n]*)"
)
_AGAIN = re.compile(r"Recompiling function \S+ in (?P<path>.+):(?P<line>\d+)\n(?:.*\n)??\s*- \S+: (?P<why>[^\n]*)")


class Note(NamedTuple):
    """path, line: of the user's code. why: as the compiler says it."""

    path: str
    line: int
    why: str


@dataclass(slots=True)
class CompilerNotes:
    """How often each was said."""

    breaks: Counter[Note] = field(default_factory=Counter[Note])
    again: Counter[Note] = field(default_factory=Counter[Note])


@contextmanager
def compiler_notes() -> Iterator[CompilerNotes]:
    """Notes of what is compiled inside; the loggers are as they were afterwards."""
    notes = CompilerNotes()
    handler = _Listener(notes)
    loggers = [logging.getLogger(f"torch._dynamo.{module}.__{kind}") for module in _MODULES for kind in _KINDS]
    before = [(each, each.level, each.propagate) for each in loggers]
    for each in loggers:
        each.addHandler(handler)
        each.setLevel(logging.DEBUG)
        each.propagate = False
    enabled = log_state.artifact_names
    again = "recompiles" not in enabled
    enabled.add("recompiles")  # Dynamo asks for the reason of one only where its artifact is asked for
    try:
        yield notes
    finally:
        if again:
            enabled.discard("recompiles")
        for each, level, propagate in before:
            each.removeHandler(handler)
            each.setLevel(level)
            each.propagate = propagate


class _Listener(logging.Handler):
    def __init__(self, notes: CompilerNotes) -> None:
        super().__init__()
        self._notes = notes

    def emit(self, record: logging.LogRecord) -> None:
        said = record.getMessage()
        found = _BREAK.search(said)
        if found is not None:
            why = found["more"].strip() or found["why"].strip()
            self._notes.breaks[Note(found["path"], int(found["line"]), why)] += 1
        again = _AGAIN.search(said)
        if again is not None:
            self._notes.again[Note(again["path"], int(again["line"]), again["why"].strip())] += 1
