"""Small jobs for the proof of resuming: one that goes on exactly, and some that do not. A step takes milliseconds."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import hasten


def job(**changes: Any) -> hasten.Job:
    generator = torch.Generator().manual_seed(1)
    rows = torch.randn(56, 6, generator=generator)
    labels = (rows[:, :3] + torch.randn(56, 3, generator=generator) / 2).argmax(1)
    fields: dict[str, Any] = {
        "model": lambda: nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.3), nn.Linear(8, 3)),
        "loss": lambda model, batch: functional.cross_entropy(model(batch[0]), batch[1]),
        "optimizer": lambda params: torch.optim.AdamW(params, lr=0.05),
        "schedule": lambda optimizer, total_steps: torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, total_steps),
        "train": (rows, labels),
        "valid": (rows[:20], labels[:20]),
        "batch_size": 8,
        "epochs": 8,  # of seven steps each
    }
    return hasten.Job(**(fields | changes))


def short() -> hasten.Job:
    """Its planned end comes before the step at which it would be asked to end."""
    return job(epochs=2)


class Drawn(torch.utils.data.Dataset[Any]):
    """Rows that are drawn anew whenever they are read."""

    def __len__(self) -> int:
        return 56

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return torch.rand(6) + index / 56, index % 3


def with_workers() -> hasten.Job:
    return job(train=Drawn(), epochs=4)


class Counting(nn.Module):
    """Remembers, where no checkpoint looks, how often it was called."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.calls = nn.Linear(6, 3), 0

    def forward(self, rows: Tensor) -> Tensor:
        self.calls += self.training
        return self.layer(rows) * (1 + self.calls / 100)


def counting() -> hasten.Job:
    return job(model=Counting, valid=None)


def another_each_time() -> hasten.Job:
    begun = time.time_ns() % 1_000_003

    def loss(model: nn.Module, batch: Any) -> Tensor:
        return functional.cross_entropy(model(batch[0]), batch[1]) * (1 + begun / 1e7)

    return job(loss=loss)


def faulty() -> hasten.Job:
    def loss(model: nn.Module, batch: Any) -> Tensor:
        raise ValueError("no such class")

    return job(loss=loss)


def ending() -> hasten.Job:
    """Its process dies without a word, and leaves a temporary folder."""

    def loss(model: nn.Module, batch: Any) -> Tensor:
        Path(os.environ["HASTEN_TEST_FOLDER"], "temporary").write_text(tempfile.mkdtemp())
        os._exit(3)

    return job(loss=loss)


def standing_still() -> hasten.Job:
    def loss(model: nn.Module, batch: Any) -> Tensor:
        signal.pause()
        return model(batch[0]).sum()

    return job(loss=loss)


def interrupting() -> hasten.Job:
    """Interrupts the process of HASTEN_TEST_PROCESS in its first step, when it has a child that nobody waits for."""

    def loss(model: nn.Module, batch: Any) -> Tensor:
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.setsid()
            os.write(writing, b".")
            signal.pause()
        os.read(reading, 1)
        Path(os.environ["HASTEN_TEST_FOLDER"], "pids").write_text(f"{os.getpid()} {child}")
        os.kill(int(os.environ["HASTEN_TEST_PROCESS"]), signal.SIGINT)
        signal.pause()
        return model(batch[0]).sum()

    return job(loss=loss)
