"""Batches that are loaded already: each step gets its own copy, larger ones where a batch has a row for each sample."""

from __future__ import annotations

from collections import UserDict
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from hasten.data.loading.batch_loader import Microbatch
from hasten.doctor.profiling.larger_batches import larger_batches, may_be_cheaper
from hasten.doctor.profiling.repeated_batches import RepeatedBatches, enlarged, kept_windows
from hasten.doctor.profiling.timed_steps import TimedSteps, retained_memory
from hasten.training.probes.brief_run import brief_run
from support.doctor.faulty_model_job import job

ROWS, LABELS = torch.arange(8.0).reshape(4, 2), torch.arange(4)


class Named(NamedTuple):
    rows: Any
    labels: Any


def repeated(batch: Any) -> RepeatedBatches:
    return RepeatedBatches(None, [Microbatch(batch, 4, True)], on_host=True)


@pytest.mark.parametrize("kind", [dict, UserDict])
def test_a_loss_that_changes_its_batch_gets_another_each_time(kind):
    batches = repeated(kind(rows=ROWS, labels=LABELS)).epoch(0)
    for _ in range(2):
        batch = next(batches).batch
        batch.pop("labels")
        assert torch.equal(batch["rows"], torch.arange(8.0).reshape(4, 2))
        if kind is dict:  # of another mapping the parts are those of the loader
            batch["rows"].mul_(2.0)


def test_a_copy_takes_no_more_than_the_batch_of_what_lies_in_its_storage_and_no_time_of_a_step(monkeypatch):
    ticks = iter(range(1_000))
    monkeypatch.setattr("time.perf_counter", lambda: float(next(ticks)))
    whole = torch.zeros(1_000, 2, requires_grad=True) * 2
    free = repeated(Named(whole[:4], LABELS))
    rows = next(free.epoch(0)).batch.rows
    assert torch.equal(rows, whole[:4])
    assert rows.untyped_storage().nbytes() == rows.nbytes
    assert free.seconds == 1.0  # a tick


class Windows:
    """A loader of two microbatches a window."""

    def __init__(self, steps_per_epoch: int | None) -> None:
        self.steps_per_epoch = steps_per_epoch

    def epoch(self, number: int) -> Any:
        return (Microbatch(window, 4, last) for window in range(100) for last in (False, True))


@pytest.mark.parametrize(
    ("steps_per_epoch", "within", "kept"),
    [(100, 40, [5, 15, 25, 35]), (8, 40, [1, 3, 5, 7]), (2, 40, [0, 1]), (None, 40, [0, 1, 2, 3])],
    ids=["of the start", "of all", "of few", "of a stream"],
)
def test_batches_are_kept_from_all_over_the_steps_that_are_timed(steps_per_epoch, within, kept):
    found = kept_windows(Windows(steps_per_epoch), 0, within, 4)
    assert [each.batch for each in found] == [window for window in kept for _ in range(2)]


@pytest.mark.parametrize(
    "batch",
    [
        [ROWS, LABELS],
        {"rows": ROWS, "labels": LABELS, "name": "of the batch", "scale": 2.0, "weight": torch.tensor(1.0)},
        (ROWS.numpy(), LABELS.numpy()),
        Named(ROWS, LABELS),
    ],
    ids=["list", "dictionary", "arrays", "named"],
)
def test_tensors_and_arrays_of_rows_are_repeated(batch):
    (found,) = enlarged([Microbatch(batch, 4, True)], 3) or []
    parts = [*found.batch.values()] if isinstance(found.batch, dict) else [*found.batch]
    assert found.samples == 12
    assert np.array_equal(parts[0], np.concatenate([ROWS] * 3))
    assert np.array_equal(parts[1], np.concatenate([LABELS] * 3))


@pytest.mark.parametrize("batch", ["no tensor at all", [ROWS, torch.arange(3)], [[*ROWS], LABELS]], ids=str)
def test_what_is_no_row_for_each_sample_is_not_made_larger(batch):
    assert enlarged([Microbatch(batch, 4, True)], 3) is None


@pytest.mark.parametrize(
    ("seconds", "more"),
    [
        ([1.0, 3.5], False),
        ([1.0, 1.2], True),
        ([1.0, 1.1, 3.0], True),
        ([1.0, 1.1, 3.0, 10.6], False),
        ([1.0, 1.1, 3.0, 6.6], True),
    ],
    ids=["no small batch", "fixed costs", "the first that costs", "none is cheaper", "other cores help"],
)
def test_larger_batches_are_tried_as_long_as_a_sample_becomes_cheaper(seconds, more):
    assert may_be_cheaper([(4**number, each) for number, each in enumerate(seconds)]) is more


class Noting(Dataset[Any]):
    def __init__(self) -> None:
        self.asked = list[int]()

    def __len__(self) -> int:
        return 640

    def __getitem__(self, index: int) -> Any:
        self.asked.append(index)
        return torch.zeros(1, 6, 6), index % 3


def test_reading_alone_does_not_read_what_the_steps_have_just_read():
    data = Noting()
    with brief_run(job(train=data, shuffle=False), None, name="", steps=1_000) as run:
        timed, seen = TimedSteps(run), list[set[int]]()
        for _ in range(2):
            data.asked.clear()
            timed.take(3)
            stepped = {*data.asked}
            data.asked.clear()
            timed.read(3)
            assert len(stepped & {*data.asked}) < len(stepped) / 2
            seen.append({*data.asked})
        assert not seen[0] & seen[1]
        with timed.free([*run.loader.epoch(0)]):
            timed.take(50)  # beyond the forty steps of an epoch
            assert run.built.batches.describe(run.steps + 1) == "samples that were read before"


def test_memory_that_is_retained_is_compared_over_the_same_samples():
    data = Noting()
    with brief_run(job(train=data, shuffle=True), None, name="", steps=1_000) as run:
        data.asked.clear()
        retained_memory(run, TimedSteps(run), 3, 2)
    size = 16 * (1 + 3)  # a stretch takes one step before
    stretches = [data.asked[start : start + size] for start in range(0, len(data.asked), size)]
    assert len(stretches) >= 3
    assert all(each == stretches[0] for each in stretches)


class Lengths(Dataset[Any]):
    """The first ones are long."""

    def __len__(self) -> int:
        return 6_400

    def __getitem__(self, index: int) -> Any:
        return torch.ones(2_000 if index < 16 else 1), 0


def padded(samples: Any) -> Any:
    return nn.utils.rnn.pad_sequence([row for row, _ in samples], batch_first=True), len(samples)


@pytest.mark.proof
def test_larger_batches_are_compared_with_the_one_that_was_enlarged():
    lengths = list[int]()

    def loss(model: nn.Module, batch: Any) -> Tensor:
        lengths.append(batch[0].numel())
        return model(torch.ones(2, 1, 6, 6)).mean()

    with brief_run(job(loss, train=Lengths(), shuffle=False, collate=padded), None, name="", steps=1_000) as run:
        kept = [*run.loader.epoch(0)]
        found, refused = larger_batches(run, TimedSteps(run), kept, 4, lambda: 0)
    assert refused == ""
    assert [each.times for each in found][:2] == [1, 4]
    assert {*lengths} <= {16 * 2_000 * each.times for each in found}
