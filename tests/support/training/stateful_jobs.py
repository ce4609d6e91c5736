"""Losses that remember what they were, in whatever Python has for that, and read it in their next call."""

from __future__ import annotations

import enum
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


class Scheduled:
    """A place in a table that begins with equal entries, moved behind the model."""

    def __init__(self) -> None:
        self.step, self.table = 0, [False] * 6 + [True] * 9

    def __call__(self, model: nn.Module, batch: Any) -> Loss:
        words, following = batch
        found = loss(model, (words.flip(1) if self.table[self.step] else words, following))
        self.step = min(self.step + model.training, 14)
        return found


class Phase(enum.IntEnum):
    FIRST, SECOND = 1, 2
