"""Small jobs and Setups for tests."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from hasten.data.sources.job_data import Source, source_of
from hasten.errors import JobError
from hasten.facts.job import Job
from hasten.facts.machine import Machine, read_machine
from hasten.techniques.setup import Setup


def small_job(**changes: Any) -> Job:
    """A linear classifier on 40 random rows; every field can be replaced."""
    generator = torch.Generator().manual_seed(1)
    rows, labels = torch.randn(40, 6, generator=generator), torch.randint(0, 3, (40,), generator=generator)
    fields: dict[str, Any] = {
        "model": lambda: nn.Linear(6, 3),
        "loss": lambda model, batch: nn.functional.cross_entropy(model(batch[0]), batch[1]),
        "optimizer": lambda params: torch.optim.SGD(params, lr=0.1),
        "train": (rows, labels),
        "batch_size": 8,
        "epochs": 2,
    }
    return Job(**(fields | changes))


def laptop(**changes: Any) -> Machine:
    """A machine without an accelerator."""
    fields: dict[str, Any] = {
        "cores": 2,
        "memory_bytes": 16 << 30,
        "processor": "test processor",
        "processor_features": frozenset({"avx512_bf16", "amx_bf16"}),
        "accelerator": None,
        "accelerators": 0,
        "accelerator_memory_bytes": 0,
        "compute_capability": None,
        "torch": torch.__version__,
    }
    return Machine(**(fields | changes))


def setup_of(model: nn.Module, sample: Any, machine: Machine | None = None, **job: Any) -> Setup:
    """A Setup around a ready model, as training would hand it to a technique."""
    made = small_job(model=lambda: model, **job)
    return Setup(
        job=made,
        machine=machine or read_machine(),
        device=torch.device("cpu"),
        model=model,
        train=_opened(made),
        draw_sample=lambda setup: sample,
        batch_size=job.get("batch_size", 8) or getattr(job.get("train"), "batch_size", None),
    )


def _opened(job: Job) -> Source | None:
    """The training data; None for a job of a test that could not be trained."""
    try:
        return source_of(job.train, field="train", batch_size=job.batch_size, collate=job.collate)
    except JobError:
        return None
