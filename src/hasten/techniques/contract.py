"""The record that ends every technique file.

A technique is data, not a subclass. `applies` decides, `candidates` proposes, `apply` changes the Setup and nothing
else. The module docstring of the file is the technique's manual page. A technique file imports from here what its
functions take and return.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, IntEnum
from inspect import cleandoc

from hasten.facts.choice import Choice, Preserves, Value
from hasten.techniques.setup import Setup


class Stage(IntEnum):
    """When a technique is applied; the numbers are the order."""

    PROCESS = 0
    DATA = 1
    MODEL = 2
    CLUSTER = 3
    OPTIMIZER = 4
    STEP = 5
    EVALUATION = 6


class Symptom(Enum):
    """The problem that a technique treats."""

    SLOW_MATRIX_PRODUCT = "matrix products and convolutions take most of the step"
    SLOW_CONVOLUTION = "convolutions take most of the step"
    MANY_SMALL_OPERATIONS = "the step is many small operations"
    SLOW_OPTIMIZER = "the optimizer's update takes a visible share of the step"
    MEMORY_FULL = "the batch does not fit into memory"
    SLOW_LOADING = "the training waits for its next batch"
    DEVICE_IDLE = "the device waits for work"
    SLOW_ALLOCATION = "memory is allocated and freed all the time"
    SLOW_CONVERGENCE = "training needs many steps to its target"
    UNSTABLE_TRAINING = "loss or gradients jump"
    SLOW_COMMUNICATION = "processes wait for each other's gradients"
    SLOW_EVALUATION = "evaluation takes a visible share of the run"


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
