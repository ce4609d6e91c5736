"""What torch's compiler logs: where it falls back to Python, and what it compiles again, each with the user's line."""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

from hasten.doctor.profiling.torch_dispatch import LOGGERS, recompilations_logged
from hasten.doctor.profiling.user_lines import is_users, shown
from hasten.facts.profiles import CompilerNote

_BREAK = re.compile(
    r"Graph break.* in user code at (?P<path>.+):(?P<line>\d+)\s+"
    r"(?:Graph Break )?Reason:\s*(?P<why>[^\n]*)\n*(?P<more>[^\n]*)"
)
_AGAIN = re.compile(r"Recompiling function \S+ in (?P<path>.+):(?P<line>\d+)\n(?:.*\n)??\s*- \S+: (?P<why>[^\n]*)")


class Note(NamedTuple):
    """path, line: of the user's code. why: in the compiler's words."""

    path: str
    line: int
    why: str


@dataclass(slots=True)
class CompilerNotes:
    """How often each was logged."""

    breaks: Counter[Note] = field(default_factory=Counter[Note])
    again: Counter[Note] = field(default_factory=Counter[Note])


@contextmanager
def compiler_notes() -> Iterator[CompilerNotes]:
    """Notes of what is compiled inside; nothing is printed, and the loggers are restored afterwards."""
    notes = CompilerNotes()
    handler = _Listener(notes)
    loggers = [logging.getLogger(name) for name in LOGGERS]
    before = [(each, each.level, each.propagate) for each in loggers]
    for each in loggers:
        each.addHandler(handler)
        each.setLevel(logging.DEBUG)
        each.propagate = False
    try:
        with recompilations_logged():
            yield notes
    finally:
        for each, level, propagate in before:
            each.removeHandler(handler)
            each.setLevel(level)
            each.propagate = propagate


def compiled(notes: Mapping[Note, int]) -> tuple[CompilerNote, ...]:
    """Those about the user's code, the most frequent first."""
    often = sorted(((note, times) for note, times in notes.items() if is_users(note.path)), key=lambda each: -each[1])
    return tuple(
        CompilerNote(path=shown(note.path), line=note.line, why=note.why, times=times) for note, times in often
    )


class _Listener(logging.Handler):
    def __init__(self, notes: CompilerNotes) -> None:
        super().__init__()
        self._notes = notes

    def emit(self, record: logging.LogRecord) -> None:
        message = record.getMessage()
        if found := _BREAK.search(message):
            why = found["more"].strip() or found["why"].strip()
            self._notes.breaks[Note(found["path"], int(found["line"]), why)] += 1
        if again := _AGAIN.search(message):
            self._notes.again[Note(again["path"], int(again["line"]), again["why"].strip())] += 1
