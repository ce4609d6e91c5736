"""Jobs that tests launch as several processes, each with what it does to itself."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from itertools import count
from pathlib import Path
from threading import Event
from typing import Any

import psutil
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

import hasten
from hasten.checkpoint.sharded import collective_save
from hasten.cli import run_history
from support import small_job
from support.checkpoint import file_faults

SECOND = os.environ.get("RANK") == "1"


def job() -> hasten.Job:
    return small_job(log_every=1, valid=small_job().train)


def of_another_length() -> hasten.Job:
    rows, labels = small_job().train
    return small_job(train=(rows[:32], labels[:32]) if SECOND else (rows, labels))


def with_workers_that_stay() -> hasten.Job:
    loader = DataLoader(TensorDataset(*small_job().train), batch_size=4, num_workers=1, persistent_workers=True)
    return small_job(train=loader, batch_size=None)


def raises_in_the_function() -> hasten.Job:
    if SECOND:
        raise ValueError("the second has no data")
    return small_job()


def raises_in_the_model() -> hasten.Job:
    def model() -> nn.Module:
        return raises_in_the_function().model()

    return small_job(model=model)


def _with_loss(act: Any) -> hasten.Job:
    """act: is called at every loss."""

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        act()
        return functional.cross_entropy(model(batch[0]), batch[1])

    return small_job(loss=loss, epochs=1_000)


def raises() -> hasten.Job:
    def act() -> None:
        if SECOND:
            raise ValueError("the second cannot go on")

    return _with_loss(act)


def raises_and_the_other_is_asked_to_end() -> hasten.Job:
    """By SIGTERM while it says why, as whoever launched both does."""
    say = run_history.what_is_left

    def asked_to_end(*told: Any) -> str:
        os.kill(os.getpid(), signal.SIGTERM)
        return say(*told)

    run_history.what_is_left = asked_to_end
    return raises()


def killed() -> hasten.Job:
    def act() -> None:
        if SECOND:
            os.kill(os.getpid(), signal.SIGKILL)

    return _with_loss(act)


def listens() -> hasten.Job:
    """Writes down on which addresses this run's processes listen while they train."""

    def act() -> None:
        if not SECOND:
            family = [psutil.Process(os.getppid()), *psutil.Process(os.getppid()).children(recursive=True)]
            found = [each for process in family for each in process.net_connections(kind="inet")]
            addresses = sorted({each.laddr.ip for each in found if each.status == psutil.CONN_LISTEN})
            Path("listening").write_text(" ".join(addresses))

    return small_job(loss=_with_loss(act).loss)


def waits() -> hasten.Job:
    """Trains until it is ended, and says when it has begun."""
    begun, calls = Path("begun"), count(1)

    def act() -> None:
        if SECOND and next(calls) == 2:  # both have taken a step, and heed signals
            begun.touch()

    return _with_loss(act)


def waits_on_workers() -> hasten.Job:
    rows = TensorDataset(*small_job().train)
    return replace(waits(), train=DataLoader(rows, batch_size=4, num_workers=1), batch_size=None)


class Dropping(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 3))

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return self.body(rows)


def _cut_short(model: Any) -> hasten.Job:
    """Twenty steps. The second rank, or the only one, raises in the eighth where a file of that name asks for it."""
    taken: list[int] = []

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        taken.extend([1] * model.training)
        if Path("cut").exists() and len(taken) == 8 and os.environ.get("RANK") != "0":
            raise RuntimeError("as was asked")
        return functional.cross_entropy(model(batch[0]), batch[1])

    return small_job(model=model, loss=loss, log_every=1, epochs=4, valid=small_job().train)


def cut_short_in_layers() -> hasten.Job:
    return _cut_short(lambda: nn.Sequential(*(nn.Linear(6, 6) for _ in range(3)), nn.Linear(6, 3)))


def cut_short_with_dropout() -> hasten.Job:
    return _cut_short(Dropping)


def hangs() -> hasten.Job:
    """The second process stops in its third step, and says nothing."""
    calls = count(1)

    def act() -> None:
        if SECOND and next(calls) == 3:
            Event().wait()

    return _with_loss(act)


def dies_once() -> hasten.Job:
    """The second process is killed in its sixth step, the first time that it comes there."""
    calls, died = count(1), Path("died")

    def act() -> None:
        if SECOND and next(calls) == 6 and not died.exists():
            died.touch()
            os.kill(os.getpid(), signal.SIGKILL)

    return replace(job(), loss=_with_loss(act).loss)


def _when_the_second_saves(act: Callable[[int], AbstractContextManager[None]]) -> hasten.Job:
    """Twenty steps of a model in layers. act: holds while the second process writes what it has of a checkpoint; is
    given that one's number, from 1 on."""
    write, numbers = collective_save.write_part, count(1)

    def writes(*given: Any) -> Any:
        with act(next(numbers)) if SECOND else nullcontext():
            return write(*given)

    collective_save.write_part = writes  # in this process, which ends with the run
    return cut_short_in_layers()


def full_for_the_second() -> hasten.Job:
    """While it saves its second and its third."""
    return _when_the_second_saves(
        lambda number: file_faults.file_size_limit(100) if number in (2, 3) else nullcontext()
    )


def full_for_the_second_from_then_on() -> hasten.Job:
    return _when_the_second_saves(lambda number: file_faults.file_size_limit(100) if number > 1 else nullcontext())


def dies_while_it_saves() -> hasten.Job:
    """Its third part, or the third after the run has gone on; unless a file says that it is not to."""

    def act(number: int) -> AbstractContextManager[None]:
        if number == 3 and not Path("lives").exists():
            os.kill(os.getpid(), signal.SIGKILL)
        return nullcontext()

    return _when_the_second_saves(act)


def _acts_in_layers(rank: str, act: Callable[[nn.Module], object]) -> hasten.Job:
    """act: is called with the model, on this rank alone, in every step from the fourth on, before it computes."""

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        taken.extend([1] * torch.is_grad_enabled())
        if len(taken) > 6 and os.environ.get("RANK") == rank:
            act(model)
        return functional.cross_entropy(model(batch[0]), batch[1])

    taken: list[int] = []
    return small_job(model=_of_blocks, loss=loss, epochs=4)


def _of_blocks() -> nn.Module:
    return nn.Sequential(*(nn.Sequential(nn.Linear(6, 6), nn.Tanh()) for _ in range(4)), nn.Linear(6, 3))


def raises_in_the_first_stage() -> hasten.Job:
    return _acts_in_layers("0", _raise)


def raises_in_the_last_stage() -> hasten.Job:
    return _acts_in_layers("1", _raise)


def recomputes_in_a_stage() -> hasten.Job:
    return replace(_acts_in_layers("", _raise), model=_Recomputing)


def writes_in_a_stage() -> hasten.Job:
    return replace(_acts_in_layers("", _raise), model=_Writing)


def _raise(model: nn.Module) -> None:
    model.requires_grad_(False)  # as a loss may have frozen it when it fails
    raise ValueError("this stage cannot go on")


class _Recomputing(nn.Module):
    """By torch's own function, of which hasten is told nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.body = _of_blocks()

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        for layer in self.body.children():
            rows = checkpoint(layer, rows, use_reentrant=False)
        return rows


class _Writing(nn.Module):
    """To a buffer that gradients need."""

    def __init__(self) -> None:
        super().__init__()
        self.body = _of_blocks()
        self.register_buffer("scale", torch.ones(()))

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        self.scale.mul_(0.99)  # pyright: ignore[reportCallIssue]
        return self.body(rows.clone().requires_grad_() * self.scale)
