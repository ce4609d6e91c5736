"""A job whose best number of compute threads depends on what other programs leave free: for bench.busy_machine."""

from __future__ import annotations

import torch
from torch import nn

import hasten


def convolutions() -> hasten.Job:
    generator = torch.Generator().manual_seed(0)
    images, classes = (
        torch.randn(4000, 1, 28, 28, generator=generator),
        torch.randint(0, 10, (4000,), generator=generator),
    )
    return hasten.Job(
        model=lambda: nn.Sequential(
            *(nn.Conv2d(1, 16, 3), nn.ReLU(), nn.Conv2d(16, 32, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
            nn.Linear(4608, 10),
        ),
        loss=hasten.supervised(nn.functional.cross_entropy),
        optimizer=lambda params: torch.optim.SGD(params, lr=0.01),
        train=(images, classes),
        batch_size=64,
        epochs=4,
    )
