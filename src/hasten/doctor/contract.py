"""What a source rule is. Each is one file of hasten.doctor.rules, ends in a RULE, and has a docstring that is its
manual page: a paragraph under each of the headings below."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from hasten.doctor.reading.code import Code
from hasten.doctor.reading.edits import Edit
from hasten.facts.finding import Safety, Severity

HEADINGS = ("What it finds", "Why it costs", "When to ignore it", "Fix", "Safety")


class Found(NamedTuple):
    """node: of the file, where it is. message: what is wrong there. fix: what to do there, where the rule's own words
    do not say it. edits: that do it, all of them or none; none where only a person can."""

    node: ast.AST
    message: str
    fix: str = ""
    edits: tuple[Edit, ...] = ()


Check = Callable[[Code], Iterator[Found]]


class Paged:
    """What its file's docstring is the manual page of. check: of that file."""

    check: Callable[..., Any]

    @cached_property
    def manual(self) -> str:
        """The page, as its file tells it."""
        return (sys.modules[self.check.__module__].__doc__ or "").strip()

    @property
    def headline(self) -> str:
        return self.manual.partition("\n")[0].rstrip(".")

    @cached_property
    def sections(self) -> dict[str, str]:
        """Of the manual, by heading."""
        parts = (part.partition(": ") for part in self.manual.split("\n\n"))
        return {heading: body for heading, _, body in parts if heading in HEADINGS}


@dataclass(frozen=True, kw_only=True)
class Rule(Paged):
    """safety: of what --fix does; None where only a person can mend it. technique: that treats it; None of none.
    preview: it is only looked for where it is named, as it is not yet right often enough."""

    code: str
    name: str
    severity: Severity
    fix: str
    check: Check
    safety: Safety | None = None
    technique: str | None = None
    preview: bool = False
