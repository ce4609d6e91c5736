"""Batches that are there already: each step gets its own, larger ones only where that is what they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import Dataset

from hasten.data.loader import Microbatch
from hasten.doctor.free_loading import FreeLoading, enlarged
from hasten.doctor.observe import observe_job
from hasten.doctor.stretches import Stretches
from hasten.training.brief_run import brief_run
from look_jobs import job


def look(loss: Callable[..., Any] | None = None, **changes: Any) -> Any:
    return observe_job(job(loss, **changes), tell=lambda what: None)


def test_a_loss_that_takes_its_batch_apart_and_writes_into_it_is_given_another_each_time():
    images, labels = torch.rand(64, 1, 6, 6), torch.randint(0, 3, (64,))
    largest = list[float]()

    def loss(model: nn.Module, batch: Any) -> Tensor:
        wanted, rows = batch.pop("labels"), batch.pop("images")
        largest.append(rows.abs().max().item())
        return functional.cross_entropy(model(rows.mul_(2.0)), wanted)

    found = look(loss, train={"images": images, "labels": labels})
    assert found.larger
    assert max(largest) <= 1.0


def test_steps_beyond_an_epoch_of_batches_that_are_there_already_can_be_told_of():
    with brief_run(job(), None, name="", steps=1_000) as run:
        stretches = Stretches(run)
        kept = [*run.loader.epoch(0)]
        with stretches.free(kept):
            stretches.take(20)  # beyond the four steps of an epoch
            assert run.batch_of(run.steps + 1) == "samples that the look has read before"


class Pictures(Dataset[Any]):
    def __init__(self) -> None:
        self.images, self.labels = torch.rand(64, 1, 6, 6), torch.randint(0, 3, (64,))

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> Any:
        return self.images[index], self.labels[index]


def test_a_list_of_samples_is_no_batch_that_can_be_made_larger():
    def loss(model: nn.Module, batch: Any) -> Tensor:
        return functional.cross_entropy(model(torch.stack(batch[0])), torch.stack(batch[1]))

    def collate(samples: Any) -> Any:
        return [[*each] for each in zip(*samples, strict=True)]

    found = look(loss, train=Pictures(), batch_size=8, collate=collate)
    assert (found.larger, found.no_larger) == ((), "its batches are not tensors of one row a sample")


ROWS, LABELS = torch.arange(8.0).reshape(4, 2), torch.arange(4)


@pytest.mark.parametrize(
    "batch",
    [
        [ROWS, LABELS],
        {"rows": ROWS, "labels": LABELS, "name": "of the batch", "scale": 2.0, "weight": torch.tensor(1.0)},
        (ROWS.numpy(), LABELS.numpy()),
    ],
    ids=["list", "dictionary", "arrays"],
)
def test_tensors_and_arrays_of_rows_are_there_again_and_again(batch):
    (found,) = enlarged([Microbatch(batch, 4, True)], 3) or []
    parts = [*found.batch.values()] if isinstance(found.batch, dict) else [*found.batch]
    assert found.samples == 12
    assert np.array_equal(parts[0], np.concatenate([ROWS] * 3))
    assert np.array_equal(parts[1], np.concatenate([LABELS] * 3))


@pytest.mark.parametrize(
    "batch",
    [
        "no tensor at all",
        [ROWS, torch.arange(3)],
        [[ROWS[0], ROWS[1], ROWS[2], ROWS[3]], LABELS],
        [ROWS, ["a", "b", "c", "d"]],
    ],
    ids=["nothing", "another length", "a list of samples", "a list of words"],
)
def test_what_is_no_row_for_each_sample_is_not_made_larger(batch):
    assert enlarged([Microbatch(batch, 4, True)], 3) is None


def test_a_batch_of_as_many_columns_as_samples_is_made_larger():
    pair = [ROWS[:2], LABELS[:2]]
    assert enlarged([Microbatch(pair, 2, True)], 2) is not None


def test_copies_of_batches_take_no_time_of_a_step(monkeypatch):
    ticks = iter(range(1_000))
    monkeypatch.setattr("time.perf_counter", lambda: float(next(ticks)))
    free = FreeLoading(None, [Microbatch([ROWS, LABELS], 4, True)], on_host=True)
    batches = free.epoch(0)
    first, second = next(batches).batch, next(batches).batch
    assert free.seconds == 2.0  # a tick for each
    assert first[0] is not second[0]
    assert torch.equal(first[0], second[0])


class Noting(Dataset[Any]):
    def __init__(self) -> None:
        self.asked = list[int]()

    def __len__(self) -> int:
        return 640

    def __getitem__(self, index: int) -> Any:
        self.asked.append(index)
        return torch.zeros(1, 6, 6), index % 3


@pytest.mark.parametrize("shuffle", [False, True], ids=["in order", "shuffled"])
def test_reading_alone_does_not_read_what_the_steps_have_just_read(shuffle):
    data = Noting()
    with brief_run(job(train=data, shuffle=shuffle), None, name="", steps=1_000) as run:
        stretches, seen = Stretches(run), list[set[int]]()
        for _ in range(3):
            data.asked.clear()
            stretches.take(3)
            stepped = {*data.asked}
            data.asked.clear()
            stretches.read(3)
            again = stepped & {*data.asked}
            assert len(again) < len(stepped) / 2  # by chance, where they are shuffled
            seen.append({*data.asked})
        assert not shuffle or seen[0] != seen[1]
        assert shuffle or not seen[0] & seen[1]


def test_a_reason_that_begins_with_an_empty_line_is_told():
    def loss(model: nn.Module, batch: Any) -> Tensor:
        if len(batch[1]) > 16:
            raise ValueError("\n made for sixteen")
        return functional.cross_entropy(model(batch[0]), batch[1])

    assert look(loss).no_larger == "made for sixteen"
