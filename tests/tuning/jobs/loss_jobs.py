"""Jobs whose losses are compared: one that behaves, and others that fail in one arm, which they know by its batches.

The plan beside them splits a batch of eight in two, so whoever sees four rows is the planned arm.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import hasten
from hasten.facts.plan import make_plan

ROWS, BATCH = 64, 8
SEED = [0]  # of the run: every step has a seed of its own
PLAN = make_plan(accumulation=2)


class Right:
    """The share of rows that are read right, as a torchmetrics metric gives it."""

    higher_is_better = True

    def __init__(self, becomes: float | None = None) -> None:
        self._becomes = becomes
        self.reset()

    def reset(self) -> None:
        self._right, self._seen = 0.0, 0

    def update(self, prediction: Tensor, target: Tensor) -> None:
        self._right += float((prediction.argmax(1) == target).sum())
        self._seen += len(target)

    def compute(self) -> float:
        return self._right / self._seen if self._becomes is None else self._becomes


class Silent(Right):
    higher_is_better = None


def summed(model: nn.Module, batch: Any) -> hasten.Loss:
    logits = model(batch[0])
    total = nn.functional.cross_entropy(logits, batch[1], reduction="sum")
    return hasten.Loss(total, len(logits), prediction=logits, target=batch[1])


def dropping_some() -> nn.Module:
    SEED[0] = torch.initial_seed()
    return nn.Sequential(nn.Dropout(0.1), nn.Linear(6, 8), nn.Dropout(0.1), nn.Linear(8, 3))


def job(**changes: Any) -> hasten.Job:
    generator = torch.Generator().manual_seed(1)
    rows = torch.randn(ROWS, 6, generator=generator)
    labels = (rows[:, :3] + torch.randn(ROWS, 3, generator=generator) / 2).argmax(1)
    fields: dict[str, Any] = {
        "model": dropping_some,
        "loss": summed,
        "optimizer": lambda params: torch.optim.SGD(params, lr=0.1),
        "train": (rows, labels),
        "valid": (rows[:20], labels[:20]),
        "metrics": {"right": Right(), "silent": Silent()},
        "batch_size": BATCH,
        "epochs": 2,
    }
    return hasten.Job(**(fields | changes))


def another_rate_when_planned() -> hasten.Job:
    """A twentieth of it, by gradients that are too small; the losses are told as they are."""

    def loss(model: nn.Module, batch: Any) -> hasten.Loss:
        found = summed(model, batch)
        if not is_planned(model, batch):
            return found
        return hasten.Loss(0.05 * found.total + 0.95 * found.total.detach(), found.count)

    return job(loss=loss)


def not_finite_with_seed_one_when_planned() -> hasten.Job:
    def loss(model: nn.Module, batch: Any) -> hasten.Loss:
        wrong = is_planned(model, batch) and SEED[0] == 1
        return _scaled(summed(model, batch), torch.nan if wrong else 1.0)

    return job(loss=loss)


def noted() -> hasten.Job:
    """Writes into the journal which arm trains with which seed."""

    def loss(model: nn.Module, batch: Any) -> hasten.Loss:
        if model.training:
            with _journal().open("a") as journal:
                journal.write(f"{'planned' if is_planned(model, batch) else 'plain'} {SEED[0]}\n")
        return summed(model, batch)

    return job(loss=loss)


def interrupting() -> hasten.Job:
    """Interrupts the process of HASTEN_TEST_PROCESS as the planned arm trains with the seed of HASTEN_TEST_SEED.

    Once, as somebody does at a keyboard: a second interrupt would end what the first one has made it say.
    """
    processes = [int(os.environ["HASTEN_TEST_PROCESS"])]

    def loss(model: nn.Module, batch: Any) -> hasten.Loss:
        if processes and is_planned(model, batch) and SEED[0] == int(os.environ["HASTEN_TEST_SEED"]):
            os.kill(processes.pop(), signal.SIGINT)
        return summed(model, batch)

    return job(loss=loss)


def deaf_to_seeds() -> hasten.Job:
    def model() -> nn.Module:
        torch.manual_seed(7)
        return nn.Linear(6, 3)

    return job(model=model, shuffle=False)


def is_planned(model: nn.Module, batch: Any) -> bool:
    return model.training and len(batch[0]) < BATCH


def _scaled(loss: hasten.Loss, factor: float) -> hasten.Loss:
    return hasten.Loss(loss.total * factor, loss.count, prediction=loss.prediction, target=loss.target)


def _journal() -> Path:
    return Path(os.environ["HASTEN_TEST_JOURNAL"])
