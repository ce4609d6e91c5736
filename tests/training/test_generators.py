"""Random generators of the job's own, which an evaluation draws from as training does."""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import hasten
from hasten.facts.events import Trained
from hasten.training.logs import Collected
from hasten.training.run import Run
from support import small_job


def noisy_job(kind: str, fails_at: int = 0) -> hasten.Job:
    """It draws from a generator of its own: the loss from one of torch's, or the model from one of NumPy's."""
    drawn, calls = torch.Generator().manual_seed(3), count(1)

    class Noisy(nn.Linear):
        def __init__(self) -> None:
            super().__init__(6, 3)
            self.drawn = numpy.random.default_rng(3)

        def forward(self, rows: Tensor) -> Tensor:
            return super().forward(rows + self.drawn.normal() * 0.1)

    def loss(model: nn.Module, batch: Any) -> Tensor:
        noise = torch.randn(batch[0].shape, generator=drawn) * 0.1 if kind == "loss" else 0
        if next(calls) == fails_at:
            raise ValueError("planted")
        return functional.cross_entropy(model(batch[0] + noise), batch[1])

    model = Noisy if kind == "model" else lambda: nn.Linear(6, 3)
    return small_job(model=model, loss=loss, log_every=1)


@pytest.mark.parametrize("kind", ["loss", "model"])
def test_how_often_is_evaluated_does_not_move_generators_of_the_jobs_own(kind):
    found = []
    for every in (None, 1):
        events, plain = Collected(), noisy_job(kind)
        hasten.train(replace(plain, valid=plain.train, evaluate_every=every), receivers=[events])
        found.append([event.loss for event in events.events if isinstance(event, Trained)])
    assert found[0] == found[1]


def numbers(run: Run) -> list[Any]:
    return [each.tolist() if isinstance(each, Tensor) else each for each in run.built.generators.states().values()]


@pytest.mark.parametrize("kind", ["loss", "model"])
def test_an_evaluation_that_fails_leaves_generators_of_the_jobs_own_as_they_were(kind):
    plain = noisy_job(kind, fails_at=4)
    with hasten.prepare(replace(plain, valid=plain.train)) as run:
        run.step(next(run.batches()))
        before = numbers(run)
        with pytest.raises(ValueError, match="planted"):
            run.evaluate()
        assert numbers(run) == before
