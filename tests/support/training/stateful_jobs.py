"""Losses that remember what they were, in whatever Python has for that, and read it in their next call."""

from __future__ import annotations

import enum
import math
import operator
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
from torch import nn

from hasten.facts.job import Loss
from support.ranks.word_jobs import loss


class Easing:
    """It turns words around while what `low` says of its last losses is true."""

    def __init__(self, held: Any, add: Callable[[Any, float], Any], low: Callable[[Any], bool]) -> None:
        self.held, self.add, self.low = held, add, low

    def __call__(self, model: nn.Module, batch: Any) -> Loss:
        words, following = batch
        found = loss(model, (words.flip(1) if self.low(self.held) else words, following))
        if model.training:
            self.held = self.add(self.held, float(found.total.detach()) / 1e3)
        return found


def appended(held: Any, value: float) -> Any:
    held.append(value)
    return held


def added(held: Any, value: float) -> Any:
    held[0] += value
    return held


def put_first(held: Any, value: float) -> Any:
    held[0] = value
    return held


EASING: dict[str, Callable[[], Any]] = {
    "list behind": lambda: Easing([0.0], added, lambda held: held[0] > 2),
    "array behind": lambda: Easing(np.zeros(1), added, lambda held: bool(held[0] > 2)),
    "number of numpy behind": lambda: Easing(np.float64(0), operator.add, lambda held: bool(held > 2)),
    "tuple behind": lambda: Easing((0.0,), lambda held, value: (held[0] + value,), lambda held: held[0] > 2),
    "deque behind": lambda: Easing(deque(maxlen=9), appended, lambda held: len(held) > 4 and sum(held) < 2),
    "array of one behind": lambda: Easing(np.full(1, 9.0), put_first, lambda held: bool(held[0] < 0.01)),
    "dictionary behind": lambda: Easing({}, lambda _, value: {"loss": value}, lambda held: held.get("loss", 9) < 0.01),
    "nothing at first": lambda: Easing(None, lambda _, value: value, lambda held: held is not None and held < 0.01),
}


class Printing:
    """What is moved behind the model is printed before it, in ways that not every number allows."""

    def __init__(self) -> None:
        self.phase, self.mean, self.calls, self.losses = Phase.FIRST, 0.0, 0, [1.0]

    def __call__(self, model: nn.Module, batch: Any) -> Loss:
        self.last = f"{self.losses[-1]}"
        mean, root = sum(self.losses) / len(self.losses), math.sqrt(self.calls)
        self.line = f"{math.exp(self.mean)} {root} {mean} {self.phase.name}"
        found = loss(model, batch)
        self.phase, self.mean = Phase(3 - self.phase), 0.9 * self.mean + 0.1 * float(found.total.detach())
        self.calls += 1
        self.losses.append(self.mean)
        return found


class Scheduled:
    """A place in a table that begins with equal entries, moved behind the model."""

    def __init__(self) -> None:
        self.step, self.table = 0, [False] * 6 + [True] * 9

    def __call__(self, model: nn.Module, batch: Any) -> Loss:
        words, following = batch
        found = loss(model, (words.flip(1) if self.table[self.step] else words, following))
        self.step = min(self.step + model.training, 14)
        return found


def of_a_function() -> Callable[[nn.Module, Any], Loss]:
    """It counts in an attribute of its own, and in a default."""

    def counted(model: nn.Module, batch: Any, seen: Any = [0]) -> Loss:  # noqa: B006
        words, following = batch
        found = loss(model, (words.flip(1) if counted.calls + seen[0] > 9 else words, following))
        counted.calls += 1
        seen[0] += 1
        return found

    counted.calls = 0
    return counted


class Phase(enum.IntEnum):
    FIRST, SECOND = 1, 2
