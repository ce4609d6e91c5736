"""Three jobs that are slow for a known reason each: for bench.busy_machine."""

from __future__ import annotations

from functools import partial

import torch
from bench.tuner_jobs import Deep, classifier, generator
from bench.whole_work import Photos
from torch import Tensor, nn

import hasten


def layers() -> hasten.Job:
    """Many small parameters, updated by a loop in Python."""
    rows = torch.randn(8192, 16, generator=generator())
    return classifier(
        partial(Deep, 40),
        (rows, (rows.sum(dim=1) > 0).long()),
        partial(torch.optim.AdamW, lr=1e-3),
        batch_size=32,
        epochs=6,
    )


def photos() -> hasten.Job:
    """JPEG files, each decoded again in every epoch, and flipped at random."""
    return classifier(
        lambda: nn.Sequential(
            *(nn.Conv2d(3, 32, 4, stride=4), nn.ReLU(), nn.Conv2d(32, 64, 3, stride=2), nn.ReLU()),
            *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 4)),
        ),
        hasten.Augmented(Photos(320, is_cropped_at_random=False), flipped),
        partial(torch.optim.SGD, lr=0.01),
        batch_size=32,
        epochs=50,
    )


def flipped(sample: tuple[Tensor, int]) -> tuple[Tensor, int]:
    image, quarter = sample
    return (image.flip(2) if torch.rand(()) < 0.5 else image), quarter


def convolutions() -> hasten.Job:
    """Its best number of compute threads depends on what other programs leave free."""
    drawn = generator()
    images = torch.randn(4000, 1, 28, 28, generator=drawn)
    return classifier(
        lambda: nn.Sequential(
            *(nn.Conv2d(1, 16, 3), nn.ReLU(), nn.Conv2d(16, 32, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
            nn.Linear(4608, 10),
        ),
        (images, torch.randint(0, 10, (4000,), generator=drawn)),
        partial(torch.optim.SGD, lr=0.01),
        batch_size=64,
        epochs=4,
    )
