"""A job that tests train on several hosts, and how they stop it in its middle."""

from __future__ import annotations

import os
from dataclasses import replace
from itertools import count
from pathlib import Path
from threading import Event
from typing import Any

import torch
from torch import nn
from torch.nn import functional

import hasten
from support import small_job

PAUSE = 6
REACHED, GO_ON = Path("reached"), Path("go_on")


def job() -> hasten.Job:
    return small_job(log_every=1, valid=small_job().train)


def first_pauses() -> hasten.Job:
    return _pausing("0")


def second_pauses() -> hasten.Job:
    return _pausing("1")


def _pausing(rank: str) -> hasten.Job:
    """The first time that this rank comes to its sixth step it says so, and goes on when it is told to."""
    calls = count(1)

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        if model.training and os.environ.get("RANK") == rank and next(calls) == PAUSE and not REACHED.exists():
            REACHED.touch()
            while not GO_ON.exists():
                Event().wait(0.05)
        return functional.cross_entropy(model(batch[0]), batch[1])

    return replace(job(), loss=loss)
