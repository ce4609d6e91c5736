"""A job that is harmed by some choices of a plan, alone or together: its loss sees from inside what the plan has.

HASTEN_TEST_HARMFUL names what does harm, as in "threads, microbatch of 4 + precision": whichever of these sets is all
there turns every gradient round, and tells the losses as they are. What HASTEN_TEST_FAILING
names so makes the loss fail; a set of nothing is always there.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Sampler, TensorDataset

import hasten
from tuning.jobs import loss_jobs
from tuning.jobs.loss_jobs import BATCH, summed


class CountedEpochs(Sampler[int]):
    """In order; it tells what is seen that an epoch has begun which is not the first."""

    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        CountedEpochs.epoch = epoch

    def __len__(self) -> int:
        return loss_jobs.ROWS

    def __iter__(self) -> Iterator[int]:
        return iter(range(loss_jobs.ROWS))


def counting_epochs() -> hasten.Job:
    plain = job()
    data = TensorDataset(*plain.train)
    return replace(plain, train=DataLoader(data, batch_size=BATCH, sampler=CountedEpochs()), batch_size=None)


def seen(model: nn.Module, batch: Any) -> set[str]:
    found = {"nothing"}
    if len(batch[0]) < BATCH:
        found |= {"microbatch", f"microbatch of {len(batch[0])}"}
    if torch.get_num_threads() == 1:
        found.add("threads")
    if torch.is_autocast_enabled("cpu"):
        found.add("precision")
    if float(torch.tensor(1e-39) * torch.ones(())) == 0:
        found.add("flush_denormals")
    if CountedEpochs.epoch:
        found.add("second epoch")
    return found


def is_there(variable: str, found: set[str]) -> bool:
    sets = [each.strip() for each in os.environ.get(variable, "").split(",") if each.strip()]
    return any({name.strip() for name in each.split("+")} <= found for each in sets)


def loss(model: nn.Module, batch: Any) -> hasten.Loss:
    found, given = seen(model, batch), summed(model, batch)
    if model.training and is_there("HASTEN_TEST_FAILING", found):
        raise ZeroDivisionError("as planted")
    if not model.training or not is_there("HASTEN_TEST_HARMFUL", found):
        return given
    return replace(given, total=2 * given.total.detach() - given.total)


def job(loss: Any = loss) -> hasten.Job:
    torch.set_num_threads(2)  # that one is seen as a choice, also on a machine with one core
    return loss_jobs.job(loss=loss)


def drawing() -> hasten.Job:
    """Random numbers that no dropout layer draws: no gradient of it can be judged."""

    def noisy(model: nn.Module, batch: Any) -> hasten.Loss:
        given = loss(model, batch)
        return replace(given, auxiliary=1e-3 * torch.rand(()) * model(batch[0]).square().mean())

    return job(noisy)
