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


def trains_by_a_later_name(loss: Any) -> None:
    """The method's name is read after its class."""
    run(Trainer(), loss)


def run(trainer: Any, loss: Any) -> None:
    trainer.train(loss)


def reads(path: str) -> str:
    return reads(path)


def acts_only(state: Any) -> Any:
    return Agent().act(state)


class Agent:
    def act(self, state: Any) -> Any:
        return state

    def learn(self, loss: Any) -> None:
        step(loss)


@pytest.mark.parametrize(
    ("function", "is_training"),
    [(step, True), (trains_by_a_class, True), (trains_by_a_later_name, True), (reads, False), (acts_only, False)],
)
def test_a_function_trains_where_what_it_calls_does(function: Callable[..., None], is_training: bool):
    assert trains(function) == is_training
