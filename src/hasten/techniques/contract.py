"""The record that ends every technique file.

A technique is data, not a subclass. `applies` decides, `candidates` proposes, `apply` changes the Setup and nothing
else. The module docstring of the file is the technique's manual page.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from inspect import cleandoc

from hasten.facts.choice import Choice, Preserves, Value
from hasten.facts.techniques.stage import Stage
from hasten.facts.techniques.symptom import Symptom
from hasten.techniques.setup import Setup


@dataclass(frozen=True, slots=True)
class Yes:
    """The technique can be tried here."""


@dataclass(frozen=True, slots=True)
class No:
    """The technique cannot be tried here, and why. unless_named: a plan can still use it by naming layers in its
    options."""

    reason: str
    unless_named: bool = False


def proposing(technique: str, preserves: Preserves, *values: Value) -> Callable[[Setup], Sequence[Choice]]:
    """The candidates of a technique that proposes the same values wherever it applies."""
    return lambda setup: [Choice(technique=technique, value=value, preserves=preserves) for value in values]


@dataclass(frozen=True, kw_only=True, slots=True)
class Technique:
    """Its name, when it is applied, what a plan writes for it, and three functions.

    values: the values and options that a plan can write, in words.
    applies(setup) -> Yes | No; candidates(setup) -> choices, the most promising first;
    apply(setup, choice) -> None, raising PlanError for a value or options that make no sense.
    """

    name: str
    stage: Stage
    treats: Symptom
    values: str
    costs: tuple[str, ...]
    source: str
    applies: Callable[[Setup], Yes | No]
    candidates: Callable[[Setup], Sequence[Choice]]
    apply: Callable[[Setup, Choice], None]

    @property
    def manual(self) -> str:
        """The technique's page: the docstring of its file."""
        return cleandoc(sys.modules[self.apply.__module__].__doc__ or "")

    @property
    def headline(self) -> str:
        return self.manual.partition("\n")[0]
