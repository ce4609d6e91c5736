"""Workloads for the tuner, each with its limit in another place, and jobs on which a choice does nothing or harm.

    hasten tune bench/tuner_jobs.py:rows

With the three examples they are ten. All build offline and the same every time; the planned run of each takes between
ten seconds and a minute on two cores. Data is generated, or cut from what scikit-learn carries with it.
"""

from __future__ import annotations

import os
import random
import tempfile
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from sklearn.datasets import load_digits, load_sample_image
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import Dataset

import hasten

Samples = tuple[Tensor, Tensor]
PHOTOGRAPHS = ("china.jpg", "flower.jpg")
HEIGHT, WIDTH, PICTURES = 375, 500, 640  # of the loader's JPEG files, and how many
SIDE, PARTS = 96, 512  # of the convolutional job's pictures, and how many


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def classifier(model: Any, train: Any, optimizer: Any, **rest: Any) -> hasten.Job:
    loss = hasten.supervised(functional.cross_entropy)
    return hasten.Job(model=model, loss=loss, optimizer=optimizer, train=train, seed=0, **rest)


# ── the workloads ───────────────────────────────────────────────────────────────────────────────────────────────────


def rows() -> hasten.Job:
    """A perceptron on a million rows of twenty numbers: steps so small that all that surrounds them is seen."""
    numbers = torch.randn(1_000_000, 20, generator=generator())
    labels = (numbers[:, :10].prod(dim=1) > 0).long()
    valid = numbers[:20_000], labels[:20_000]
    return classifier(
        lambda: nn.Sequential(nn.Linear(20, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 2)),
        (numbers[20_000:], labels[20_000:]),
        partial(torch.optim.AdamW, lr=1e-3),
        valid=valid,
        batch_size=256,
        max_steps=10_000,
        evaluate_every=5_000,
    )


def loader() -> hasten.Job:
    """JPEG files that take longer to decode and crop than a small network takes to learn from them."""
    return classifier(
        partial(small_convolution, 16, 4),
        hasten.ImageFolder(jpeg_folder(), hasten.RandomResizedCrop(112)),
        partial(torch.optim.SGD, lr=0.02, momentum=0.9),
        batch_size=32,
        epochs=10,
    )


class Signals(Dataset[tuple[Tensor, int]]):
    """1,024 recordings of 64k numbers, 256 KB each: a data set as it is written first, one sample at a time."""

    def __init__(self) -> None:
        self.signals = torch.randn(1024, 65_536, generator=generator())

    def __len__(self) -> int:
        return len(self.signals)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.signals[index], index % 10


def transfer() -> hasten.Job:
    """Batches of 16 MB of which little is computed: collating and moving them is nearly all."""
    return classifier(
        lambda: nn.Sequential(nn.Unflatten(1, (1, -1)), nn.AvgPool1d(64), nn.Flatten(), nn.Linear(1024, 10)),
        Signals(),
        partial(torch.optim.SGD, lr=1e-3),
        batch_size=64,
        max_steps=1_200,
    )


class Deep(nn.Module):
    """float32 [batch, 16] -> logits [batch, 2], through `layers` tiny residual layers."""

    def __init__(self, layers: int = 250) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(layers))
        self.head = nn.Linear(16, 2)

    def forward(self, numbers: Tensor) -> Tensor:
        for layer in self.layers:
            numbers = numbers + 0.1 * torch.tanh(layer(numbers))
        return self.head(numbers)


def python() -> hasten.Job:
    """Hundreds of tiny layers: the interpreter and the dispatcher take longer than the arithmetic."""
    numbers = torch.randn(8192, 16, generator=generator())
    return classifier(
        Deep,
        (numbers, (numbers.sum(dim=1) > 0).long()),
        partial(torch.optim.AdamW, lr=1e-3),
        batch_size=32,
        epochs=3,
    )


class Gated(nn.Module):
    """int64 [batch, words] -> logits [batch, 2]: a large table, and element-wise arithmetic on what is read from it."""

    def __init__(self, words: int = 100_000, width: int = 64) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(words, width), nn.Linear(width, 2)

    def forward(self, words: Tensor) -> Tensor:
        found = self.table(words)
        for _ in range(4):
            found = functional.gelu(found) * torch.sigmoid(found) + found
        return self.head(found.mean(dim=1))


def memory() -> hasten.Job:
    """An optimizer over a large table, and long chains of element-wise operations: bytes moved, little computed."""
    words = torch.randint(0, 100_000, (16_384, 64), generator=generator())
    labels = (words[:, 0] > 50_000).long()
    return classifier(Gated, (words, labels), partial(torch.optim.Adam, lr=1e-3), batch_size=128, max_steps=300)


def small_convolution(width: int, classes: int) -> nn.Sequential:
    """float32 [batch, 3, side, side] -> logits [batch, classes]."""
    layers = list[nn.Module]()
    for before, after in ((3, width), (width, 2 * width), (2 * width, 4 * width)):
        layers += [nn.Conv2d(before, after, 3, stride=2, padding=1), nn.BatchNorm2d(after), nn.ReLU()]
        layers += [nn.Conv2d(after, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4 * width, classes))


def convolution() -> hasten.Job:
    """A convolutional network on pictures of 96 pixels, parts of two photographs."""
    pictures, labels = photograph_parts()
    return classifier(
        partial(small_convolution, 32, len(PHOTOGRAPHS)),
        (pictures[64:], labels[64:]),
        partial(torch.optim.SGD, lr=0.05, momentum=0.9),
        valid=(pictures[:64], labels[:64]),
        batch_size=32,
        epochs=8,
    )


class Reader(nn.Module):
    """float32 [batch, 64] -> logits [batch, 10]: the pixels of a digit, read one after the other."""

    def __init__(self, width: int = 128) -> None:
        super().__init__()
        self.reader, self.head = nn.LSTM(1, width, num_layers=2, batch_first=True), nn.Linear(width, 10)

    def forward(self, pixels: Tensor) -> Tensor:
        read, _ = self.reader(pixels.unsqueeze(-1))
        return self.head(read[:, -1])


def recurrent() -> hasten.Job:
    """Long short-term memory over sequences of 64: many small products that wait for each other."""
    pixels, digits = load_digits(return_X_y=True)
    samples = torch.tensor(pixels, dtype=torch.float32) / 16, torch.tensor(digits)
    return classifier(
        Reader,
        tuple(part[200:] for part in samples),
        partial(torch.optim.AdamW, lr=2e-3),
        valid=tuple(part[:200] for part in samples),
        batch_size=64,
        epochs=8,
        clip_norm=1.0,
    )


# ── pictures ────────────────────────────────────────────────────────────────────────────────────────────────────────


def photograph_parts() -> Samples:
    """float32 [PARTS, 3, SIDE, SIDE] from -1 to 1, and which photograph each part is of."""
    drawn = random.Random(0)
    photographs = [torch.tensor(load_sample_image(name)).permute(2, 0, 1) for name in PHOTOGRAPHS]
    parts = list[Tensor]()
    for number in range(PARTS):
        photograph = photographs[number % len(photographs)]
        top, left = (drawn.randint(0, length - SIDE) for length in photograph.shape[1:])
        parts.append(photograph[:, top : top + SIDE, left : left + SIDE])
    return torch.stack(parts).float() / 127.5 - 1, torch.arange(PARTS) % len(photographs)


def jpeg_folder() -> Path:
    """A folder of JPEG files in class folders, written by the first run that asks for it; never half of one."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hasten"
    folder = home / f"tuner-pictures-{PICTURES}-{WIDTH}x{HEIGHT}"
    if not folder.exists():
        home.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=home) as unfinished:
            write_jpegs(Path(unfinished) / "pictures", PICTURES)
            try:
                (Path(unfinished) / "pictures").rename(folder)
            except OSError:
                if not folder.exists():  # else another process was faster, and its files are the same
                    raise
    return folder


def write_jpegs(folder: Path, count: int) -> None:
    """So many parts of the photographs, mirrored or not: four classes."""
    drawn, photographs = random.Random(0), [Image.fromarray(load_sample_image(name)) for name in PHOTOGRAPHS]
    for label in range(2 * len(photographs)):
        (folder / f"class-{label}").mkdir(parents=True)
    for number in range(count):
        label = number % (2 * len(photographs))
        photograph = photographs[label // 2]
        left, top = drawn.randint(0, photograph.width - WIDTH), drawn.randint(0, photograph.height - HEIGHT)
        part = photograph.crop((left, top, left + WIDTH, top + HEIGHT))
        if label % 2:
            part = part.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        part.save(folder / f"class-{label}" / f"{number:06}.jpg", quality=85, subsampling="4:2:0")


# ── a choice that does nothing, and one that slows down ─────────────────────────────────────────────────────────────

UNITS = 40  # products of matrices in the loss of one batch


@cache
def flushes() -> bool:
    """Whether this process takes denormal numbers for zero: how the choice is seen from inside. Asked once; the mode is
    set before the first batch."""
    return (torch.tensor([1e-39]) * 1.0).item() == 0.0


def units(slower: float) -> int:
    """How much the loss computes: more by this share where the plan flushes denormal numbers."""
    return round(UNITS * (1 + slower)) if flushes() else UNITS


def busy(slower: float) -> hasten.Job:
    """Steps of a few milliseconds, nearly all in products of matrices that no gradient comes from. No number in it is
    anywhere near a denormal one, so flush_denormals can gain nothing."""
    matrix = torch.eye(160) + 0.01

    def loss(model: nn.Module, batch: Samples) -> Tensor:
        for _ in range(units(slower)):
            torch.matmul(matrix, matrix)
        return functional.mse_loss(model(batch[0]), batch[1])

    numbers = torch.rand(4096, 8, generator=generator()) + 1
    return hasten.Job(
        model=lambda: nn.Linear(8, 1),
        loss=loss,
        optimizer=partial(torch.optim.SGD, lr=1e-3),
        train=(numbers, numbers.sum(dim=1, keepdim=True)),
        batch_size=16,
        max_steps=3_000,
        seed=0,
    )


def nothing() -> hasten.Job:
    return busy(0.0)


def slower_by_5() -> hasten.Job:
    return busy(0.05)


def slower_by_10() -> hasten.Job:
    return busy(0.10)


def slower_by_30() -> hasten.Job:
    return busy(0.30)
