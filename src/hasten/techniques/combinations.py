"""Which choices a plan cannot make together, and why: one table, and the function that reads it.

A row is here only if obeying both choices is impossible. Choices that merely gain nothing together are left to the
tuner, which measures; a choice that its own technique cannot obey is refused by that technique.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

from hasten.facts.choice import Choice, Value


@dataclass(frozen=True, kw_only=True, slots=True)
class Illegal:
    """Two techniques, by name, with the values for which they exclude each other; no values stand for every value."""

    first: str
    second: str
    reason: str
    first_values: tuple[Value, ...] = ()
    second_values: tuple[Value, ...] = ()

    def forbids(self, one: Choice, other: Choice) -> bool:
        """In this order or the other."""
        return self._matches(one, other) or self._matches(other, one)

    def _matches(self, first: Choice, second: Choice) -> bool:
        return (
            (first.technique, second.technique) == (self.first, self.second)
            and (not self.first_values or first.value in self.first_values)
            and (not self.second_values or second.value in self.second_values)
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Conflict:
    """Choices that one plan cannot make together, and why, in a sentence."""

    choices: tuple[Choice, ...]
    reason: str


TABLE = (
    Illegal(
        first="accumulation",
        second="microbatch",
        reason="both say how many samples one forward and backward pass takes",
    ),
    Illegal(
        first="loader_workers",
        first_values=(0,),
        second="prefetch",
        reason="it is the workers that keep batches ready",
    ),
    Illegal(
        first="communication",
        second="shard",
        reason="ranks that hold a model in parts have no replicas",
    ),
    Illegal(
        first="communication",
        first_values=("powersgd",),
        second="precision",
        second_values=("fp16",),
        reason="what an approximation left out is in the loss scale of its step",
    ),
    *(
        Illegal(first=first, second="pipeline", reason="both say how many samples one forward and backward pass takes")
        for first in ("accumulation", "microbatch")
    ),
    Illegal(
        first="communication",
        second="pipeline",
        reason="the stages of several pipelines sum their gradients by themselves",
    ),
    *(
        Illegal(first=first, first_values=values, second=second, reason=reason)
        for first, values in (("compile", ()), ("fused_operators", ("traced",)))
        for second, reason in (
            ("pipeline", "what is traced as a whole cannot be left in the middle of its forward pass"),
            ("tensor", "what is traced knows nothing of other processes"),
            ("shard", "what is traced looks at parameters that are not gathered yet"),
        )
    ),
    Illegal(
        first="fused_operators",
        first_values=("traced",),
        second="compile",
        reason="a traced model is called as it stands, or code is generated from it",
    ),
    Illegal(
        first="fused_operators",
        first_values=("traced",),
        second="activation_checkpointing",
        reason="what is traced and called as it stands writes a block's buffers again when that is recomputed",
    ),
    Illegal(
        first="pipeline",
        second="precision",
        second_values=("fp16",),
        reason="each process would find another loss scale by the overflows of its own stage",
    ),
    Illegal(
        first="tensor",
        second="precision",
        second_values=("fp16",),
        reason="each process would find a loss scale for its own share",
    ),
    Illegal(
        first="loader_workers",
        first_values=(0,),
        second="persistent_workers",
        reason="without workers, none can stay",
    ),
)


def conflicts(choices: Sequence[Choice], table: Sequence[Illegal] = TABLE) -> list[Conflict]:
    """One for each technique that is chosen twice and each pair that a row forbids; empty when all is well."""
    return [*_repeated(choices), *_forbidden(choices, table)]


def _repeated(choices: Sequence[Choice]) -> Iterator[Conflict]:
    for technique, times in Counter(choice.technique for choice in choices).items():
        if times > 1:
            same = tuple(choice for choice in choices if choice.technique == technique)
            values = ", ".join(str(choice.value) for choice in same)
            yield Conflict(
                choices=same, reason=f"{technique} is chosen {times} times ({values}); only one value can hold"
            )


def _forbidden(choices: Sequence[Choice], table: Sequence[Illegal]) -> Iterator[Conflict]:
    for one, other in combinations(choices, 2):
        for row in table:
            if row.forbids(one, other):
                yield Conflict(choices=(one, other), reason=f"{one} and {other} exclude each other: {row.reason}")
