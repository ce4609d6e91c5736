"""A technique's setting, what it preserves and treats, and how fast it proved to be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import cast

Scalar = str | bool | int | float
Value = Scalar | list[Scalar] | list[str] | list[int] | list[float]


def value_text(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return f"[{', '.join(map(value_text, cast('list[object]', value)))}]"
    return str(value)


class Preserves(IntEnum):
    """What a choice leaves unchanged, strictest first. It is a claim until it is confirmed on the job."""

    BITS = 0
    ROUNDING = 1
    STATISTICS = 2
    TRAINING = 3

    @property
    def words(self) -> str:
        return _WORDS[self]

    @classmethod
    def from_words(cls, words: str) -> Preserves:
        """The class with these words. Raises ValueError."""
        for member, text in _WORDS.items():
            if text == words:
                return member
        raise ValueError(f'"{words}" is not a valid value;  write one of: {", ".join(_WORDS.values())}')


_WORDS = {
    Preserves.BITS: "bit-exact",
    Preserves.ROUNDING: "equal up to rounding",
    Preserves.STATISTICS: "same statistics",
    Preserves.TRAINING: "changes training",
}


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


@dataclass(frozen=True, kw_only=True, slots=True)
class Speedup:
    """How many times as fast: the median of paired ratios with its 95 % interval."""

    ratio: float
    low: float
    high: float
    pairs: int

    def __str__(self) -> str:
        return f"{self.ratio:.2f}× ({self.low:.2f}–{self.high:.2f}, {self.pairs} pairs)"


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """One technique with its value, and options where the value alone does not say everything.

    preserves: what the choice claims to leave unchanged. For None, a run takes the technique's own claim where the
        technique would propose this choice, and TRAINING for any other.
    """

    technique: str
    value: Value
    preserves: Preserves | None = None
    options: Mapping[str, Value] = field(default_factory=dict[str, Value])

    def __str__(self) -> str:
        """As the plan writes it: precision = bf16, with TOML's own words for true and false."""
        options = ", ".join(f"{key} = {value_text(value)}" for key, value in self.options.items())
        return f"{self.technique} = {value_text(self.value)}" + (f" ({options})" if options else "")
