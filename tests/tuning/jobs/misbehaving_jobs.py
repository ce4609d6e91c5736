"""Jobs that do to their arm whatever a job can do by mistake.

Where one starts processes it writes their numbers into the file HASTEN_TEST_JOURNAL. Whatever is endless here ends by
itself where nobody ends it: no test endangers the machine that it runs on.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

import hasten

Loss = Callable[[nn.Module, Any], torch.Tensor]
CALLS: list[None] = []


def plain_loss(model: nn.Module, batch: Any) -> torch.Tensor:
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def job(loss: Loss = plain_loss, **changes: Any) -> hasten.Job:
    generator = torch.Generator().manual_seed(1)
    fields: dict[str, Any] = {
        "model": lambda: nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 3)),
        "loss": loss,
        "optimizer": lambda params: torch.optim.SGD(params, lr=0.1),
        "train": (torch.randn(400, 6, generator=generator), torch.randint(0, 3, (400,), generator=generator)),
        "batch_size": 8,
        "epochs": 2,
    }
    return hasten.Job(**(fields | changes))


def __getattr__(name: str) -> Callable[[], hasten.Job]:
    """job_leaks, job_escapes, …: the job that does what the function of that name does before each loss."""
    doing = globals().get(name.removeprefix("job_"))
    if not name.startswith("job_") or doing is None:
        raise AttributeError(name)

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        CALLS.append(None)
        doing()
        return plain_loss(model, batch)

    return lambda: job(loss)


def note(*processes: int) -> None:
    with Path(os.environ["HASTEN_TEST_JOURNAL"]).open("a") as journal:
        journal.write("".join(f"{process} " for process in processes))


def stay() -> None:
    """As long as a test may take."""
    signal.setitimer(signal.ITIMER_REAL, 170)
    while True:
        signal.pause()


# What hangs.


def hangs_while_built() -> hasten.Job:
    stay()
    raise AssertionError


def hangs_with_the_interpreter_locked() -> None:
    re.match("(a|a)*$", "a" * 60 + "b")


def prints_much() -> None:
    if not CALLS[1:]:
        for _ in range(50):
            os.write(1, b"all work and no play " * 50_000)


# What would stay behind.


def forks_what_forks(depth: int = 2) -> None:
    if len(CALLS) > 1:
        return
    for _ in range(3):
        if os.fork() == 0:
            note(os.getpid())
            if depth > 1:
                forks_what_forks(depth - 1)
            stay()


def twins() -> None:
    if not CALLS[1:]:
        note(os.fork() or os.getpid())


def dies_before_its_child() -> None:
    """Which holds open all that its parent has held open."""
    child = os.fork()
    if child == 0:
        stay()
    note(child)
    os.abort()
