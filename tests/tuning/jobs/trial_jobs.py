"""Jobs that behave and jobs that do not, for trials in processes of their own."""

from __future__ import annotations

import gc
import os
import signal
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

import hasten

CACHES = ("HASTEN_CACHE", "TMPDIR", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
Loss = Callable[[nn.Module, Any], torch.Tensor]


def plain_loss(model: nn.Module, batch: Any) -> torch.Tensor:
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def job(loss: Loss = plain_loss, rows: int = 40, epochs: int = 2) -> hasten.Job:
    generator = torch.Generator().manual_seed(1)
    return hasten.Job(
        model=lambda: nn.Linear(6, 3),
        loss=loss,
        optimizer=lambda params: torch.optim.SGD(params, lr=0.1),
        train=(torch.randn(rows, 6, generator=generator), torch.randint(0, 3, (rows,), generator=generator)),
        batch_size=8,
        epochs=epochs,
    )


def raising(model: nn.Module, batch: Any) -> torch.Tensor:
    raise ZeroDivisionError("in the middle")


def killed(model: nn.Module, batch: Any) -> torch.Tensor:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


def lost_without_a_trace(model: nn.Module, batch: Any) -> torch.Tensor:
    return plain_loss(model, batch) + torch.nan  # its gradients are finite


def greedy(model: nn.Module, batch: Any) -> torch.Tensor:
    return torch.empty(1 << 62, dtype=torch.uint8).sum()


def finding_the_disk_full(model: nn.Module, batch: Any) -> torch.Tensor:
    raise ValueError("could not be saved") from OSError(28, "No space left on device")


def __getattr__(name: str) -> Callable[[], hasten.Job]:
    """job_raising, job_killed, …: the job with the loss of that name."""
    loss = globals().get(name.removeprefix("job_"))
    if not name.startswith("job_") or loss is None:
        raise AttributeError(name)
    return lambda: job(loss)


def empty() -> hasten.Job:
    return job(rows=0)


def finding_no_cache() -> hasten.Job:
    """Fails where a folder for caches holds what another arm has left there, and leaves something in each."""
    places = {Path(os.environ[name], "left by an arm") for name in CACHES}
    found = [str(place) for place in places if place.exists()]
    if found:
        raise FileExistsError(f"another arm has been here: {found}")
    for place in places:
        place.touch()
    return job()


def one_model_at_a_time() -> hasten.Job:
    """Fails where a model is made while the one before is still held. What only the collector would find is held: it
    may come late."""
    gc.disable()
    made = list[weakref.ref[nn.Module]]()

    def model() -> nn.Module:
        if any(each() is not None for each in made):
            raise MemoryError("there are two models")
        found = nn.Linear(6, 3)
        made.append(weakref.ref(found))
        return found

    return replace(job(), model=model)
