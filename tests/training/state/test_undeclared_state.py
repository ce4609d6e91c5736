"""State that a training step changes and no checkpoint would hold is an error in the first steps."""

from __future__ import annotations

import random
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import hasten
from hasten.errors import JobError
from support import small_job

bank = torch.zeros(3)
draws = random.Random(0)


def follow(teacher: nn.Module, model: nn.Module) -> None:
    with torch.no_grad():
        for held, own in zip(teacher.parameters(), model.parameters(), strict=True):
            held.lerp_(own, 0.3)


def plain(model: nn.Module, batch: Any) -> Tensor:
    return functional.cross_entropy(model(batch[0]), batch[1])


def closed_over() -> Any:
    teacher = nn.Linear(6, 3)

    def loss(model: nn.Module, batch: Any) -> Tensor:
        follow(teacher, model)
        return plain(model, batch)

    return loss


def by_default(model: nn.Module, batch: Any, *, seen: Tensor = torch.zeros(())) -> Tensor:  # noqa: B008
    seen += 1
    return plain(model, batch)


def of_the_file(model: nn.Module, batch: Any) -> Tensor:
    bank.add_(1)
    return plain(model, batch)


def drawn_in_the_file(model: nn.Module, batch: Any) -> Tensor:
    return plain(model, batch) * draws.random()


def of_a_partial() -> Any:
    def loss(teacher: nn.Module, model: nn.Module, batch: Any) -> Tensor:
        follow(teacher, model)
        return plain(model, batch)

    return partial(loss, nn.Linear(6, 3))


class Held:
    def __init__(self) -> None:
        self.teacher = nn.Linear(6, 3)

    def __call__(self, model: nn.Module, batch: Any) -> Tensor:
        follow(self.teacher, model)
        return plain(model, batch)

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        return self(model, batch)


class Centred(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("centre", torch.zeros(3))

    def forward(self, prediction: Tensor, target: Tensor) -> Tensor:
        self.centre = self.centre * 0.5 + prediction.detach().mean(0) * 0.5
        return functional.cross_entropy(prediction - self.centre, target)


class Noisy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.numbers = nn.Linear(6, 3), np.random.default_rng(6)

    def forward(self, rows: Tensor) -> Tensor:
        return self.linear(rows + float(self.numbers.random()))


LOSSES = {
    "teacher": closed_over,
    "seen": lambda: by_default,
    "bank": lambda: of_the_file,
    "draws": lambda: drawn_in_the_file,
    "argument 0": of_a_partial,
    "Held.teacher": Held,
    "Centred": lambda: hasten.supervised(Centred()),
}


@pytest.mark.parametrize(("name", "make"), LOSSES.items(), ids=LOSSES)
def test_what_the_loss_changes_undeclared_is_named(name, make):
    with pytest.raises(JobError, match=f"state: does not declare {name}, which a training step changes"):
        hasten.train(small_job(loss=make()), receivers=[])


def test_a_generator_that_the_model_draws_from_undeclared_is_named():
    with pytest.raises(JobError, match=r"does not declare model\.numbers"):
        hasten.train(small_job(model=Noisy), receivers=[])


def test_what_begins_to_change_in_the_second_step_is_named():
    calls = list[int]()
    teacher = nn.Linear(6, 3)

    def loss(model: nn.Module, batch: Any) -> Tensor:
        if calls:
            follow(teacher, model)
        calls.append(1)
        return plain(model, batch)

    with hasten.prepare(small_job(loss=loss)) as run:
        batches = run.batches()
        run.step(next(batches))
        with pytest.raises(JobError, match="does not declare teacher"):
            run.step(next(batches))


def test_a_frozen_teacher_needs_no_declaration():
    teacher = nn.Linear(6, 3).requires_grad_(False)
    weights = torch.ones(3)

    def loss(model: nn.Module, batch: Any) -> Tensor:
        return functional.mse_loss(model(batch[0]), teacher(batch[0])) + functional.cross_entropy(
            model(batch[0]), batch[1], weights
        )

    assert hasten.train(small_job(loss=loss), receivers=[]).steps == 10


def test_the_models_own_layers_and_weights_are_not_taken_for_undeclared_state():
    model = nn.Linear(6, 3)

    def loss(given: nn.Module, batch: Any) -> Tensor:
        return functional.cross_entropy(given(batch[0]), batch[1]) + model.weight.square().mean()

    assert hasten.train(small_job(loss=loss, model=lambda: model), receivers=[]).steps == 10
