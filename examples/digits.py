"""Handwritten digits: a small residual network on the images that scikit-learn carries with it.

    hasten train examples/digits.py:job

1,797 grey images of 8×8 pixels; one in five is held out, every digit in the same share. On two cores with AMX the
network reads 99.4 % of those right, as the job is and by plans/digits.toml.
"""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn
from torch.nn import functional
from torch.optim.lr_scheduler import OneCycleLR
from torchmetrics.classification import MulticlassAccuracy

import hasten

Samples = tuple[Tensor, Tensor]


def load_digits_as_tensors() -> tuple[Samples, Samples]:
    """Train and valid: float32 images [N, 1, 8, 8] from 0 to 1, and their int64 digits [N]."""
    images, digits = load_digits(return_X_y=True)
    images = torch.tensor(images, dtype=torch.float32).reshape(-1, 1, 8, 8) / 16
    digits = torch.tensor(digits)
    train, valid = train_test_split(range(len(digits)), test_size=0.2, stratify=digits, random_state=0)
    return (images[train], digits[train]), (images[valid], digits[valid])


def convolution(channels_in: int, channels_out: int) -> nn.Sequential:
    layer = nn.Conv2d(channels_in, channels_out, 3, padding=1)  # hasten: ignore[H417]  the plan takes its bias away
    return nn.Sequential(layer, nn.BatchNorm2d(channels_out))


class Residual(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.change = nn.Sequential(convolution(channels, channels), nn.ReLU(), convolution(channels, channels))

    def forward(self, images: Tensor) -> Tensor:
        return torch.relu(images + self.change(images))


def small_resnet(width: int) -> nn.Sequential:
    return nn.Sequential(
        convolution(1, width),
        nn.ReLU(),
        Residual(width),
        Residual(width),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(width, 10),
    )


def job(width: int = 128, epochs: int = 8) -> hasten.Job:
    train, valid = load_digits_as_tensors()
    return hasten.Job(
        model=lambda: small_resnet(width),
        loss=hasten.supervised(functional.cross_entropy),
        optimizer=lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9, nesterov=True, weight_decay=5e-4),
        schedule=lambda optimizer, total_steps: OneCycleLR(optimizer, max_lr=0.1, total_steps=total_steps),
        train=train,
        valid=valid,
        batch_size=64,
        epochs=epochs,
        metrics={"accuracy": MulticlassAccuracy(10, average="micro")},
        seed=0,
    )


def small_job() -> hasten.Job:
    """A narrower network and fewer epochs: seconds, for trying things out."""
    return job(width=32, epochs=4)
