"""Processes that a script starts itself: those that train are refused, others are not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from hasten.scripts.running.own_processes import trains


def step(loss: Any) -> None:
    (lambda: loss.backward())()


class Trainer:
    def train(self, loss: Any) -> None:
        step(loss)


def trains_by_a_class(loss: Any) -> None:
    Trainer().train(loss)


def reads(path: str) -> str:
    return reads(path)


@pytest.mark.parametrize(("function", "is_training"), [(step, True), (trains_by_a_class, True), (reads, False)])
def test_a_function_trains_where_what_it_calls_does(function: Callable[..., None], is_training: bool):
    assert trains(function) == is_training
