"""What a rule is: one file of hasten.doctor.rules, model_rules or run_rules that ends in a RULE. The file's docstring
is the rule's manual page, with a paragraph under each of the headings below."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from pkgutil import iter_modules
from typing import Any, Generic, NamedTuple, TypeVar

from hasten.doctor.edits import Edit
from hasten.doctor.reading.names.scopes import begin
from hasten.doctor.reading.source_code import Code
from hasten.facts.choice import Preserves
from hasten.facts.finding import Finding, Safety, Severity
from hasten.facts.profiles import CompilerNote, Layer, Line, ModelProfile, RunProfile
from hasten.measure.speedup_bound import Part

__all__ = [
    "HEADINGS", "Code", "Found", "FoundInModel", "FoundInRun", "Layer", "Line", "ModelProfile", "ModelRule", "Part",
    "Preserves", "Rule", "RunProfile", "RunRule", "Safety", "Severity", "SourceRule", "enrolled",
]  # fmt: skip
HEADINGS = ("What it finds", "Why it matters", "Fix", "When to ignore", "Automatic fix")
Subject = TypeVar("Subject")
What = TypeVar("What")


class Found(NamedTuple):
    """In a source file, at a node. fix: what to do there, if not the rule's own fix. edits: do it, all of them or none;
    () where only a person can. severity: if not the rule's own."""

    node: ast.AST
    message: str
    fix: str = ""
    edits: tuple[Edit, ...] = ()
    severity: Severity | None = None

    @property
    def line(self) -> int:
        return begin(self.node)[0]


class FoundInModel(NamedTuple):
    """layer: where; None for the whole model. fix: if not the rule's own."""

    layer: Layer | None
    message: str
    fix: str = ""


class FoundInRun(NamedTuple):
    """step_seconds: upper bound of what a fix saves of each step; None where it was not measured in seconds. line: of
    the user's code; None where no single line is to blame. fix: if not the rule's own. epoch_seconds: upper bound of
    what a fix saves of an epoch outside its steps."""

    message: str
    step_seconds: float | None
    line: Line | CompilerNote | None = None
    fix: str = ""
    epoch_seconds: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Rule(Generic[Subject, What]):
    """check: yields what is wrong with a source file, a model or a run, and measures nothing itself. safety: of what
    --fix does; None where only a person can fix it. preserves: what a training keeps under that fix, where it is one
    for speed that a search of a script may try; None where it is not. technique: the one that treats it, if any.
    gpu_only: whether it costs nothing without an accelerator. part: of a training whose seconds it costs at most; None
    where the time of no single part says."""

    code: str
    severity: Severity = Severity.SLOW
    fix: str
    check: Callable[[Subject], Iterator[What]]
    safety: Safety | None = None
    preserves: Preserves | None = None
    technique: str | None = None
    gpu_only: bool = False
    part: Part | None = None

    def finding(self, found: Found | FoundInModel | FoundInRun, **place: Any) -> Finding:
        """place: further fields of the finding."""
        own = found.severity if isinstance(found, Found) else None
        return Finding(
            code=self.code,
            rule=self.name,
            severity=own or self.severity,
            message=found.message,
            fix=found.fix or self.fix,
            technique=self.technique,
            gpu_only=self.gpu_only,
            **place,
        )

    @property
    def name(self) -> str:
        """Its file's."""
        return self.check.__module__.rpartition(".")[2]

    @cached_property
    def manual(self) -> str:
        """The docstring of the rule's file."""
        return (sys.modules[self.check.__module__].__doc__ or "").strip()

    @property
    def headline(self) -> str:
        return self.manual.partition("\n")[0].rstrip(".")


def enrolled(package: str, path: Iterable[str]) -> tuple[Any, ...]:
    """The rules of a package's files that have one, by code."""
    files = [import_module(f"{package}.{each.name}") for each in iter_modules(path)]
    return tuple(sorted((file.RULE for file in files if hasattr(file, "RULE")), key=lambda rule: rule.code))


SourceRule = Rule[Code, Found]
ModelRule = Rule[ModelProfile, FoundInModel]
RunRule = Rule[RunProfile, FoundInRun]
