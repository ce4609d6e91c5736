"""Jobs whose steps take the time that a test says, whatever the machine does: an arm's clock is moved by the loss.

The clock of the arm's process is replaced when its job is made; the loss moves it on by what a step would cost under
the plan of that arm, as it can see it from inside: autocast, compute threads, microbatches, an optimizer's form.
HASTEN_TEST_NOISE is the standard deviation of a step's logarithm, HASTEN_TEST_SEED seeds it.
"""

from __future__ import annotations

import os
import random
from typing import Any

import torch
from torch import nn

import hasten
from hasten.tune import trial

STEP_SECONDS = 1.0


class Clock:
    """In place of the module `time` where a trial reads it."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now


CLOCK = Clock()
NOISE = float(os.environ.get("HASTEN_TEST_NOISE", "0"))
RANDOM = random.Random(os.environ.get("HASTEN_TEST_SEED", "0"))


def seconds(samples: int) -> float:
    """Of one forward and backward of a whole batch under this arm's plan."""
    took = STEP_SECONDS
    if torch.is_autocast_enabled("cpu"):
        took *= 0.5
    if torch.get_num_threads() == 1:
        took *= 1.5
    if samples == 4:  # half of the batch: the planted gain that every machine can have
        took *= 0.5
    if samples == 2:  # and a gain too small to be known early
        took *= 0.97
    return took * (1 if NOISE == 0 else RANDOM.lognormvariate(0, NOISE))


def loss(model: nn.Module, batch: Any) -> torch.Tensor:
    CLOCK.now += seconds(len(batch[0])) * len(batch[0]) / 8
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def job(loss: Any = loss, **rest: Any) -> hasten.Job:
    trial.time = CLOCK  # type: ignore[assignment]
    generator = torch.Generator().manual_seed(1)
    return hasten.Job(
        model=lambda: nn.Linear(6, 3),
        loss=loss,
        optimizer=lambda params: torch.optim.SGD(params, lr=0.1),
        train=(torch.randn(400, 6, generator=generator), torch.randint(0, 3, (400,), generator=generator)),
        batch_size=8,
        epochs=2,
        **rest,
    )


def failing_in_bf16() -> hasten.Job:
    def failing(model: nn.Module, batch: Any) -> torch.Tensor:
        if torch.is_autocast_enabled("cpu") and CLOCK.now > 5:
            raise ZeroDivisionError("only in bf16")
        return loss(model, batch)

    return job(failing)


def failing_always() -> hasten.Job:
    def failing(model: nn.Module, batch: Any) -> torch.Tensor:
        if CLOCK.now > 5:
            raise ZeroDivisionError("in every arm")
        return loss(model, batch)

    return job(failing)


def failing_in_microbatches(after: float = 2.0) -> hasten.Job:
    def failing(model: nn.Module, batch: Any) -> torch.Tensor:
        if len(batch[0]) < 8 and CLOCK.now > after:
            raise ZeroDivisionError("only in microbatches")
        return loss(model, batch)

    return job(failing)


def failing_late_in_microbatches() -> hasten.Job:
    return failing_in_microbatches(after=5.0)


def failing_at_once() -> hasten.Job:
    def failing(model: nn.Module, batch: Any) -> torch.Tensor:
        raise ZeroDivisionError("in every arm")

    return job(failing)


def longer() -> hasten.Job:
    return job(max_steps=90)
