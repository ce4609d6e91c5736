"""Three jobs that draw, average, schedule and split as real ones do, and what a run of them leaves to be compared.

Every step's loss is logged. A run is a child of its own process group, forked from a process in which torch is loaded
already, so that to kill it and to begin it again costs no more than its training.
"""

from __future__ import annotations

import json
import os
import random
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim.lr_scheduler import OneCycleLR

import hasten
from hasten.checkpoint.store import Store
from support.checkpoint import file_faults
from support.data.loaders import Buckets

SAVING = hasten.Saving(every_steps=3)


def dropout_perceptron() -> hasten.Job:
    generator = torch.Generator().manual_seed(1)
    rows, labels = torch.randn(60, 8, generator=generator), torch.randint(0, 3, (60,), generator=generator)
    return hasten.Job(
        model=lambda: nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 3)),
        loss=lambda model, batch: functional.cross_entropy(model(batch[0]), batch[1]),
        optimizer=lambda params: torch.optim.AdamW(params, lr=0.01),
        train=(rows, labels),
        valid=(rows[:20], labels[:20]),
        batch_size=8,
        epochs=3,
        log_every=1,
        evaluate_every=5,
        stop=hasten.EarlyStopping("loss", patience=50),
        average=hasten.ExponentialAverage(decay=0.9),
    )


class Augmented(torch.utils.data.Dataset[Any]):
    """Pictures that are turned, shifted and dimmed by all three generators that data sets draw from."""

    def __init__(self, count: int) -> None:
        generator = torch.Generator().manual_seed(2)
        self.pictures = torch.rand(count, 1, 8, 8, generator=generator)
        self.labels = torch.randint(0, 4, (count,), generator=generator)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        picture = self.pictures[index].flip(-1) if random.random() < 0.5 else self.pictures[index]
        picture = picture.roll(int(np.random.randint(-2, 3)), -1)
        return picture * torch.rand(()), self.labels[index]


def augmented_network() -> hasten.Job:
    def model() -> nn.Module:
        convolutions = nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(2)
        return nn.Sequential(*convolutions, nn.Flatten(), nn.Linear(16, 4))

    return hasten.Job(
        model=model,
        loss=lambda model, batch: functional.cross_entropy(model(batch[0]), batch[1]),
        optimizer=lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9),
        train=torch.utils.data.DataLoader(Augmented(50), batch_size=8, shuffle=True, num_workers=2),
        valid=Augmented(16),
        epochs=2,
        log_every=1,
    )


def bucketed_network() -> hasten.Job:
    """By the lists of a batch sampler, which its evaluations take too."""
    loader = torch.utils.data.DataLoader(Augmented(22), batch_sampler=Buckets(), num_workers=2)
    return replace(augmented_network(), train=loader, valid=loader, epochs=3)


class Writer(nn.Module):
    """A causal transformer of one block over 32 letters."""

    def __init__(self) -> None:
        super().__init__()
        self.letters, self.places = nn.Embedding(32, 16), nn.Embedding(12, 16)
        self.block = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True)
        self.head = nn.Linear(16, 32)

    def forward(self, text: Tensor) -> Tensor:
        length = text.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(length)
        stream = self.letters(text) + self.places(torch.arange(length))
        return self.head(self.block(stream, src_mask=mask, is_causal=True))


def accumulated_writer() -> hasten.Job:
    text = torch.randint(0, 32, (48, 13), generator=torch.Generator().manual_seed(3))
    return hasten.Job(
        model=Writer,
        loss=lambda model, batch: functional.cross_entropy(
            model(batch[0][:, :-1]).flatten(0, 1), batch[0][:, 1:].flatten()
        ),
        optimizer=lambda params: torch.optim.AdamW(params, lr=0.01),
        schedule=lambda optimizer, total_steps: OneCycleLR(optimizer, max_lr=0.02, total_steps=total_steps),
        train=(text,),
        valid=(text[:12],),
        batch_size=8,
        epochs=3,
        clip_norm=1.0,
        log_every=1,
    )


def writers_plan() -> hasten.Plan:
    return hasten.make_plan(precision="bf16", accumulation=2)


JOBS: dict[str, tuple[Callable[[], hasten.Job], Callable[[], hasten.Plan | None]]] = {
    "dropout perceptron": (dropout_perceptron, lambda: None),
    "augmented network": (augmented_network, lambda: None),
    "bucketed network": (bucketed_network, lambda: None),
    "accumulated writer": (accumulated_writer, writers_plan),
}


def train(name: str, folder: Path, **changes: Any) -> None:
    """Begin the job's run, or go on with it, by one command for both, as a scheduler has it."""
    job, plan = JOBS[name]
    hasten.resume(replace(job(), **changes), plan(), run_dir=folder, saving=SAVING, receivers=[])


def begun(work: Callable[[], Any]) -> int:
    """A child of its own process group that does the work; its number."""

    def alone() -> bool:
        os.setsid()
        work()
        return True

    return file_faults.started(alone)


def killed(child: int) -> None:
    """End a child and all that it has begun, as the system does for memory: without a last word."""
    try:
        os.killpg(child, signal.SIGKILL)
    except ProcessLookupError:  # it has no group of its own yet, or is gone
        os.kill(child, signal.SIGKILL)


def trace(folder: Path) -> list[Any]:
    """What the run's log tells of the training, to the bit and without a clock."""
    found: list[Any] = []
    for line in (folder / "metrics.jsonl").read_text().splitlines():
        event = json.loads(line)
        match event["event"]:
            case "trained":
                found.append((event["step"], event["loss"].hex(), event["learning_rate"].hex(), event["momentum"]))
            case "evaluated":
                found.append((event["step"], {name: value.hex() for name, value in event["results"].items()}))
            case "finished":
                found.append((event["reason"], event["steps"], event["epochs"], event["kept_step"], event["results"]))
            case other:
                found.append(other)
    return found


def weights(folder: Path) -> bytes:
    return (folder / "model.safetensors").read_bytes()


def final_state(folder: Path) -> tuple[dict[str, Any], bytes]:
    """Of the newest checkpoint, all but what a clock has told: as it lies on the disk."""
    newest = Store(folder / "checkpoints").found()[0].path
    trees = json.loads((newest / "state.json").read_text())
    del trees["log"]
    return trees, (newest / "tensors.safetensors").read_bytes()


def tensors(folder: Path) -> dict[str, Tensor]:
    return safetensors.torch.load(weights(folder))
