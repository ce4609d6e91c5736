"""What every arm of bench/peers.py trains: the three jobs of bench/pipeline_jobs.py in torch's own terms.

Samples, batches, rate and lengths are the naive scripts' (examples/naive.py, pipeline_naive.py). So is the data of
arms as they come. Tuned ones have it as a careful hand would keep it: pictures decoded once, rows and windows gathered
a batch at a time. A step begins where the model is called in training, which every trainer does once a step; that is
where the benchmark counts.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from bench.pipeline_jobs import PHOTO_EPOCHS
from bench.pipeline_naive import SCRIPTS, photos_script
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import Dataset

RATE = 1e-3
SMALLEST_PART = (0.4 * 3 / 4) ** 0.5  # of a square photo's side, by examples/naive.py: its area, and how narrow
Batch = tuple[Tensor, Tensor]


@dataclass(frozen=True, kw_only=True, slots=True)
class Work:
    """train, valid: data sets of samples (input, target), for training and evaluation. careful: gives both as a careful
    hand keeps them; by_batches: these are then asked for a whole batch, by a list of its samples' numbers.

    loss: (what the model gives, targets) -> the mean. epochs, steps: how long; one of them is None. every: steps
    between evaluations, None for one in each epoch. metric: "accuracy" or "loss", of an evaluation. clip: the largest
    norm of all gradients, None for any. convolutional: whether the model takes pictures. narrow: whether bfloat16 is
    faster, as whoever tunes by hand has tried.
    """

    model: Callable[[], nn.Module]
    train: Any
    valid: Any
    careful: Callable[[], tuple[Any, Any]]
    by_batches: bool
    loss: Callable[[Tensor, Tensor], Tensor]
    batch_size: int
    metric: str
    epochs: int | None = None
    steps: int | None = None
    every: int | None = None
    clip: float | None = None
    convolutional: bool = False
    narrow: bool = True

    def result(self, logits: Tensor, targets: Tensor) -> Tensor:
        """The metric of some samples, as a mean over them."""
        return self.loss(logits, targets) if self.metric == "loss" else (logits.argmax(-1) == targets).float().mean()


@dataclass(frozen=True, kw_only=True, slots=True)
class How:
    """tuned: with every public setting that makes it faster here. workers: of its loader. tick: called when a step
    begins. told: takes the result of each evaluation; None for none, in a training that does not end."""

    tuned: bool
    workers: int
    tick: Callable[[], None] = lambda: None
    told: Callable[[float], None] | None = None


class Counted(nn.Module):
    """A model whose every call in training begins a step."""

    def __init__(self, model: nn.Module, tick: Callable[[], None]) -> None:
        super().__init__()
        self.model, self._tick = model, tick

    def forward(self, inputs: Tensor) -> Tensor:
        if self.training:
            self._tick()
        return self.model(inputs)


def work_of(name: str) -> Work:
    """name: "images", "text" or "rows"."""
    return images() if name == "images" else of_script(name)


def images() -> Work:
    script = photos_script()
    train, valid = (
        script["PhotoDataset"](f"{os.environ['HASTEN_PHOTOS']}/{part}", train=part == "train")
        for part in ("train", "valid")
    )
    return Work(
        model=lambda: script["Net"](32, len(train.classes)),
        train=train,
        valid=valid,
        careful=lambda: (
            Kept(train, script["SIZE"], script["MEAN"], script["STD"]),
            on_all_cores(valid.__getitem__, range(len(valid))),
        ),
        by_batches=False,
        loss=nn.CrossEntropyLoss(),
        batch_size=64,
        metric="accuracy",
        epochs=PHOTO_EPOCHS,
        convolutional=True,
    )


class Kept(Dataset[tuple[Tensor, int]]):
    """The photos of a naive data set, each decoded once, reduced, and kept in memory; another part of it is shown every
    time."""

    def __init__(self, photos: Any, size: int, mean: Sequence[float], deviation: Sequence[float]) -> None:
        self._photos, self._size = photos, (size, size)
        self._kept = on_all_cores(lambda sample: reduced(Image.open(sample[0]).convert("RGB"), size), photos.samples)
        self._mean, self._scale = 255 * np.array(mean, np.float32), 1 / (255 * np.array(deviation, np.float32))

    def __len__(self) -> int:
        return len(self._kept)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        shown = self._photos.crop(self._kept[index]).resize(self._size, Image.Resampling.BILINEAR)
        label = self._photos.samples[index][1]
        return torch.from_numpy((np.asarray(shown, np.float32) - self._mean) * self._scale).permute(2, 0, 1), label


def on_all_cores(function: Callable[[Any], Any], items: Iterable[Any]) -> list[Any]:
    """What the function makes of each item, in their order. Decoding a picture leaves the interpreter to others."""
    with ThreadPoolExecutor() as pool:
        return list(pool.map(function, items))


def reduced(photo: Image.Image, size: int) -> Image.Image:
    """By a whole number, as far as the smallest part that is shown still has the pixels of the view."""
    return photo.reduce(max(int(SMALLEST_PART * min(photo.size) / size), 1))


def of_script(name: str) -> Work:
    script = SCRIPTS[name]()
    job, as_batch = script.job, of_rows if name == "rows" else of_windows
    assert job.batch_size is not None
    return Work(
        model=job.model,
        train=script.train,
        valid=script.valid,
        careful=lambda: (Columns(job.train, as_batch), Columns(job.valid, as_batch)),
        by_batches=True,
        loss=script.loss,
        batch_size=job.batch_size,
        metric="accuracy" if name == "rows" else "loss",
        epochs=job.epochs,
        steps=job.max_steps,
        every=job.evaluate_every,
        clip=job.clip_norm,
        narrow=name != "rows",
    )


class Columns(Dataset[Batch]):
    """Samples in memory, gathered by a list of their numbers. as_batch: makes inputs and targets of the rows."""

    def __init__(self, columns: Sequence[Tensor], as_batch: Callable[[Sequence[Tensor]], Batch]) -> None:
        self._columns, self._as_batch = columns, as_batch

    def __len__(self) -> int:
        return len(self._columns[0])

    def __getitem__(self, numbers: Any) -> Batch:
        return self._as_batch([column[numbers] for column in self._columns])


def of_rows(columns: Sequence[Tensor]) -> Batch:
    return columns[0], columns[1]


def of_windows(columns: Sequence[Tensor]) -> Batch:
    windows = columns[0].long()
    return windows[:, :-1], windows[:, 1:]
