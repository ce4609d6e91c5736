"""Choices that a plan cannot make together, and why: one table, and the function that reads it.

A row is here only if both choices together are impossible. Choices that only gain nothing together are for the tuner,
which measures them. A choice that is impossible by itself is refused by its technique.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

from hasten.facts.choice import Choice, Value


@dataclass(frozen=True, slots=True)
class Illegal:
    """Two techniques, by name, and the values for which they exclude each other; no values mean every value."""

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
    """Choices that one plan cannot make together, and the reason in a sentence."""

    choices: tuple[Choice, ...]
    reason: str


_PARTS = "both say how many samples one forward and backward pass takes"
_TWICE = "a traced graph writes a block's buffers again when the block is recomputed"
_FP16 = ("fp16",)
_TRACED = {
    "pipeline": "a traced model cannot be interrupted in the middle of its forward pass",
    "tensor": "a traced graph does not communicate with other processes",
    "shard": "a traced graph would read parameters that are not gathered yet",
}
TABLE = (
    Illegal("accumulation", "microbatch", _PARTS),
    Illegal("accumulation", "pipeline", _PARTS),
    Illegal("microbatch", "pipeline", _PARTS),
    Illegal("loader_workers", "prefetch", "without loader workers no batches are read ahead", (0,)),
    Illegal("loader_workers", "persistent_workers", "without loader workers there are none to keep", (0,)),
    Illegal("communication", "shard", "a sharded model has no replicas that send gradients"),
    Illegal("communication", "pipeline", "pipelines sum the gradients of their stages themselves"),
    Illegal("pipeline", "precision", "each process would find another loss scale for its own stage", (), _FP16),
    Illegal("tensor", "precision", "each process would find another loss scale for its own part", (), _FP16),
    *(Illegal("compile", second, reason) for second, reason in _TRACED.items()),
    *(Illegal("fused_operators", second, reason, ("traced",)) for second, reason in _TRACED.items()),
    Illegal("fused_operators", "compile", "one calls the traced graph, the other generates code from it", ("traced",)),
    Illegal("fused_operators", "activation_checkpointing", _TWICE, ("traced",)),
)


def conflicts(choices: Sequence[Choice], table: Sequence[Illegal] = TABLE) -> list[Conflict]:
    """One for each technique that is chosen twice and each pair that a row forbids; empty where there is none."""
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
