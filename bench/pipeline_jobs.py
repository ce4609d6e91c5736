"""The three jobs of bench/pipeline.py: what their naive scripts train, written down for hasten.

    hasten tune bench/pipeline_jobs.py:rows

Networks, data, batches and the numbers of updates are those of the scripts, and so is Adam at a constant rate. Pictures
come from HASTEN_PHOTOS, as in examples/photos.py.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache, partial
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional
from torchmetrics.classification import MulticlassAccuracy

import hasten
from hasten.training.setup.load_job import load_job

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
PHOTO_EPOCHS = 20
PATIENCE = 3  # evaluations without a better one, until a stopped job ends
CONTEXT, TEXT_BATCH, TEXT_CLIP, TEXT_STEPS = 128, 16, 1.0, 300
ROWS, HELD_OUT, COLUMNS, CLASSES, ROWS_BATCH, ROWS_EPOCHS = 200_000, 20_000, 20, 4, 256, 10
MISLABELLED = 0.05  # of all rows
Samples = tuple[Tensor, Tensor]


def images() -> hasten.Job:
    job = load_job(f"{EXAMPLES}/photos.py:job")
    adam = partial(torch.optim.Adam, lr=1e-3)
    return replace(job, optimizer=adam, schedule=None, epochs=PHOTO_EPOCHS)


def images_stopped() -> hasten.Job:
    return replace(images(), stop=hasten.EarlyStopping("accuracy", patience=PATIENCE))


def text() -> hasten.Job:
    """A small GPT that learns Python, byte by byte."""
    job = load_job(f"{EXAMPLES}/text.py:job")
    adam = partial(torch.optim.Adam, lr=1e-3)
    return replace(job, optimizer=adam, parameters=None, schedule=None, clip_norm=TEXT_CLIP, max_steps=TEXT_STEPS)


def rows() -> hasten.Job:
    """A perceptron on a table of twenty columns, in memory."""
    learned, held_out = rows_data()
    return hasten.Job(
        model=perceptron,
        loss=hasten.supervised(functional.cross_entropy),
        optimizer=partial(torch.optim.Adam, lr=1e-3),
        train=learned,
        valid=held_out,
        batch_size=ROWS_BATCH,
        epochs=ROWS_EPOCHS,
        metrics={"accuracy": MulticlassAccuracy(CLASSES, average="micro")},
        seed=0,
    )


def rows_stopped() -> hasten.Job:
    return replace(rows(), stop=hasten.EarlyStopping("accuracy", patience=PATIENCE))


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(COLUMNS, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, CLASSES))


@cache
def rows_data() -> tuple[Samples, Samples]:
    """Train and valid: float32 [rows, 20], and int64 classes [rows] that a network drawn at random gives them, but for
    one in twenty, whose class is drawn."""
    drawn = torch.Generator().manual_seed(0)
    numbers = torch.randn(ROWS, COLUMNS, generator=drawn)
    inner = torch.tanh(numbers @ torch.randn(COLUMNS, 16, generator=drawn) / 2)
    classes = (inner @ torch.randn(16, CLASSES, generator=drawn)).argmax(1)
    wrong = torch.rand(ROWS, generator=drawn) < MISLABELLED
    classes[wrong] = torch.randint(CLASSES, (int(wrong.sum()),), generator=drawn)
    return (numbers[HELD_OUT:], classes[HELD_OUT:]), (numbers[:HELD_OUT], classes[:HELD_OUT])
