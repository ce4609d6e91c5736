"""Jobs with a planted loss: one weight that every step brings nearer to its place, by as much as the
learning rate says. With the rate r its distance shrinks by the factor 1 - r, and nothing in that is left to chance.

The clock is that of the clocked jobs, with their noise: eight samples take a second.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

import hasten
from hasten.tuning.proof import training_runs
from hasten.tuning.trials import trial
from tuning.jobs.clocked_jobs import CLOCK, drawn

ROWS = torch.ones(32, 1)


class Distance(nn.Module):
    def __init__(self, start: float = 100.0) -> None:
        super().__init__()
        self.distance, self.steep = nn.Parameter(torch.tensor([start])), 1.0

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return rows * self.distance


def loss(model: Any, batch: Any) -> torch.Tensor:
    CLOCK.now += len(batch[0]) / 8 * drawn()
    return model.steep * model(batch[0]).square().mean() / 2


def job(rate: float = 0.05, model: Any = Distance, **rest: Any) -> hasten.Job:
    training_runs.time = trial.time = CLOCK  # type: ignore[assignment]
    fields: dict[str, Any] = {"valid": (ROWS[:8],), "epochs": 5, "loss": loss} | rest
    return hasten.Job(
        model=model,
        optimizer=lambda params: torch.optim.SGD(params, lr=rate),
        train=(ROWS,),
        batch_size=8,
        **fields,
    )


def too_fast_at_twice_the_rate() -> hasten.Job:
    """1 - 1.2 shrinks it, and 1 - 2.4 makes it grow."""
    return job(rate=1.2)


def infinite_at_twice_the_rate() -> hasten.Job:
    return job(rate=1.9, epochs=20)


def steeper_from_odd_seeds() -> hasten.Job:
    """There half of the rate is as much as it bears."""

    def model() -> nn.Module:
        made = Distance()
        made.steep = 30.0 if torch.initial_seed() % 2 else 1.0
        return made

    return job(model=model)
