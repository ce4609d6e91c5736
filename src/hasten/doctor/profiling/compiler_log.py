"""What torch's compiler logs: where it falls back to Python, and what it compiles again, each with the user's line."""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from hasten.doctor.profiling.torch_dispatch import LOGGERS, recompilations_logged
from hasten.facts.profiles import CompilerNote
from hasten.users_code import is_users_file, short

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


class CompilerNotes(logging.Handler):
    """breaks, again: how often each was logged."""

    def __init__(self) -> None:
        super().__init__()
        self.breaks, self.again = Counter[Note](), Counter[Note]()

    def emit(self, record: logging.LogRecord) -> None:
        message = record.getMessage()
        if found := _BREAK.search(message):
            why = found["more"].strip() or found["why"].strip()
            self.breaks[Note(found["path"], int(found["line"]), why)] += 1
        if again := _AGAIN.search(message):
            self.again[Note(again["path"], int(again["line"]), again["why"].strip())] += 1


@contextmanager
def compiler_notes() -> Iterator[CompilerNotes]:
    """Notes of what is compiled inside; nothing is printed, and the loggers are restored afterwards."""
    notes = CompilerNotes()
    loggers = [logging.getLogger(name) for name in LOGGERS]
    before = [(each, each.level, each.propagate) for each in loggers]
    for each in loggers:
        each.addHandler(notes)
        each.setLevel(logging.DEBUG)
        each.propagate = False
    try:
        with recompilations_logged():
            yield notes
    finally:
        for each, level, propagate in before:
            each.removeHandler(notes)
            each.setLevel(level)
            each.propagate = propagate


def compiled(notes: Counter[Note]) -> tuple[CompilerNote, ...]:
    """Those about the user's code, the most frequent first."""
    return tuple(
        CompilerNote(path=short(note.path), line=note.line, why=note.why, times=times)
        for note, times in notes.most_common()
        if is_users_file(note.path)
    )
