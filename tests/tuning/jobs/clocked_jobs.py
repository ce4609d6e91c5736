"""Jobs whose steps take the time that a test says, whatever the machine does: an arm's clock is moved by the loss.

The clock of the arm's process is replaced when its job is made; the loss moves it on by what a step would cost under
the plan of that arm, as it can see it from inside: autocast, compute threads, microbatches.

Noise is drawn and not met, so that it is the same everywhere. It has two parts, as that of a real machine has: every
step differs a little from the one before, and every process from all others for as long as it lives. HASTEN_TEST_NOISE
and HASTEN_TEST_OFFSET are their standard deviations, of logarithms; both are drawn from HASTEN_TEST_SEED and from the
number of the process, which takes the next one that is free in the folder HASTEN_TEST_PROCESSES.
"""

from __future__ import annotations

import os
import random
from itertools import count
from pathlib import Path
from typing import Any

import torch
from torch import nn

import hasten
from hasten.facts import machine
from hasten.tuning.trials import trial

STEP_SECONDS = float(os.environ.get("HASTEN_TEST_STEP", "1"))


class Clock:
    """In place of the module `time` where a trial reads it."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now


def number_of_this_process() -> int:
    """Arms are started one after the other, so the same search numbers them the same every time."""
    folder = os.environ.get("HASTEN_TEST_PROCESSES")
    if folder is None:
        return 0
    for number in count(1):
        try:
            (Path(folder) / str(number)).touch(exist_ok=False)
        except FileExistsError:
            continue
        return number
    raise AssertionError("numbers do not end")


CLOCK = Clock()
NOISE, OFFSET = (float(os.environ.get(f"HASTEN_TEST_{name}", "0")) for name in ("NOISE", "OFFSET"))
RANDOM = random.Random(f"{os.environ.get('HASTEN_TEST_SEED', '0')} {number_of_this_process()}")
FACTOR = RANDOM.lognormvariate(0, OFFSET)  # of this process


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
    return took


def drawn() -> float:
    """A factor for one forward and backward."""
    return FACTOR * RANDOM.lognormvariate(0, NOISE)


def loss(model: nn.Module, batch: Any) -> torch.Tensor:
    CLOCK.now += seconds(len(batch[0])) * drawn() * len(batch[0]) / 8
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def loss_that_no_choice_makes_cheaper(model: nn.Module, batch: Any) -> torch.Tensor:
    CLOCK.now += STEP_SECONDS * drawn() * len(batch[0]) / 8
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


def on_eight_cores() -> hasten.Job:
    """That as many ranks share as HASTEN_TEST_RANKS says."""
    machine.usable_cores, machine.ranks_here = lambda: 8, lambda: int(os.environ["HASTEN_TEST_RANKS"])
    return job()


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


def failing_in_microbatches(after: float = 1.0) -> hasten.Job:
    def failing(model: nn.Module, batch: Any) -> torch.Tensor:
        if len(batch[0]) < 8 and CLOCK.now > after:
            raise ZeroDivisionError("only in microbatches")
        return loss(model, batch)

    return job(failing)


def failing_at_once() -> hasten.Job:
    def failing(model: nn.Module, batch: Any) -> torch.Tensor:
        raise ZeroDivisionError("in every arm")

    return job(failing)


def halved_by_either() -> hasten.Job:
    """Autocast and microbatches make it twice as fast, and both together no faster."""

    def halved(model: nn.Module, batch: Any) -> torch.Tensor:
        fast = torch.is_autocast_enabled("cpu") or len(batch[0]) == 4
        CLOCK.now += (0.5 if fast else 1.0) * len(batch[0]) / 8
        return nn.functional.cross_entropy(model(batch[0]), batch[1])

    return job(halved)


def indifferent() -> hasten.Job:
    return job(loss_that_no_choice_makes_cheaper)


def slow_first_evaluation() -> hasten.Job:
    """An evaluation takes five seconds, and the first one of every process a hundred more."""
    waiting = [100.0]

    def evaluating(model: nn.Module, batch: Any) -> torch.Tensor:
        if not model.training:
            CLOCK.now += 5.0 + (waiting.pop() if waiting else 0.0)
            return nn.functional.cross_entropy(model(batch[0]), batch[1])
        return loss(model, batch)

    return job(evaluating, valid=(torch.zeros(8, 6), torch.zeros(8, dtype=torch.long)))


def evaluating_by_batches() -> hasten.Job:
    """Every batch of an evaluation takes one second, whatever its size: five of the plain job's."""

    def evaluating(model: nn.Module, batch: Any) -> torch.Tensor:
        if model.training:
            return loss(model, batch)
        CLOCK.now += 1.0
        return nn.functional.cross_entropy(model(batch[0]), batch[1])

    return job(evaluating, valid=(torch.zeros(40, 6), torch.zeros(40, dtype=torch.long)))
