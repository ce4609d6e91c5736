"""Photographs in class folders, decoded and cropped at random every time they are seen.

    hasten train examples/photos.py:job
    HASTEN_PHOTOS=~/my-photos hasten train examples/photos.py:job   # holds train/<class>/*.jpg and valid/<class>/*.jpg

Without a folder of your own, the first run cuts one from the two photographs that scikit-learn carries with it
(sample_photos.py). The same network and data, in a script as many are written: naive.py.
"""

from __future__ import annotations

import os
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim.lr_scheduler import OneCycleLR
from torchmetrics.classification import MulticlassAccuracy

import hasten
from sample_photos import sample_photos

SIDE = 64  # pixels, of what the network sees


def convolution(channels_in: int, channels_out: int, size: int = 3, stride: int = 1) -> nn.Sequential:
    padding = (size - 1) // 2
    # hasten: ignore[H417]  the plan takes its bias away
    layer = nn.Conv2d(channels_in, channels_out, size, stride, padding)
    return nn.Sequential(layer, nn.BatchNorm2d(channels_out))


class Residual(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.change = nn.Sequential(convolution(channels, channels), nn.ReLU(), convolution(channels, channels))

    def forward(self, images: Tensor) -> Tensor:
        return torch.relu(images + self.change(images))


def small_resnet(width: int, classes: int) -> nn.Sequential:
    """float32 [batch, 3, 64, 64] -> logits [batch, classes]."""
    return nn.Sequential(
        nn.Sequential(convolution(3, width, size=4, stride=4), nn.ReLU()),
        Residual(width),
        Residual(width),
        nn.Sequential(convolution(width, 2 * width, size=3, stride=2), nn.ReLU()),
        Residual(2 * width),
        nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2 * width, classes)),
    )


def photos_folder() -> Path:
    chosen = os.environ.get("HASTEN_PHOTOS")
    return Path(chosen).expanduser() if chosen else sample_photos()


def job(width: int = 32, epochs: int = 8) -> hasten.Job:
    photos = photos_folder()
    train = hasten.ImageFolder(photos / "train", hasten.RandomResizedCrop(SIDE, scale=(0.4, 1.0)))
    valid = hasten.ImageFolder(photos / "valid", hasten.CenterCrop(SIDE, resize=SIDE))
    return hasten.Job(
        model=lambda: small_resnet(width, len(train.classes)),
        loss=hasten.supervised(functional.cross_entropy),
        optimizer=lambda params: torch.optim.AdamW(params, lr=1e-3, weight_decay=0.05),
        schedule=lambda optimizer, total_steps: OneCycleLR(optimizer, max_lr=1e-3, total_steps=total_steps),
        train=train,
        valid=valid,
        batch_size=64,
        epochs=epochs,
        metrics={"accuracy": MulticlassAccuracy(len(train.classes), average="micro")},
        seed=0,
    )


def small_job() -> hasten.Job:
    """A narrower network and fewer epochs: seconds, for trying things out."""
    return job(width=16, epochs=4)
