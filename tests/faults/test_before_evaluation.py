"""What would stop the first evaluation's loader workers is found before the first step."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from hasten.data.loading import batch_feed as feed
from hasten.entry import prepare
from hasten.errors import JobError, PlanError
from support import small_job
from support.data.broken_workers import nothing_left_behind

# Workers are forked while torch's own threads exist; they use none of them. Python says so from 3.12 on.
pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")

MIB = 1 << 20


class Rows(Dataset[Any]):
    """Sixteen rows of a quarter of a MiB each."""

    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> Any:
        return torch.zeros(1 << 16), index % 3


class Locked(Rows):
    def __init__(self) -> None:
        self.files = {"rows": [threading.Lock()]}


def read_by_two(data: Any) -> DataLoader[Any]:
    return DataLoader(data, batch_size=4, num_workers=2, prefetch_factor=2)


def no_loss(model: Any, batch: Any) -> Any:
    raise AssertionError("a step was taken")


@pytest.mark.fault("unpicklable dataset under spawn")
def test_valid_data_that_cannot_be_sent_is_refused_by_its_attribute(other_start):
    with nothing_left_behind(), pytest.raises(JobError) as refusal:
        prepare(small_job(valid=read_by_two(Locked()), loss=no_loss))
    assert (refusal.value.exit_code, refusal.value.where) == (2, "Job.valid")
    assert f"(start method {other_start}): valid.files['rows'][0] is <unlocked" in refusal.value.what


@pytest.mark.fault("/dev/shm too small")
def test_shared_memory_that_valid_data_does_not_fit_into_is_told_with_the_numbers(monkeypatch):
    monkeypatch.setattr(feed, "free_shared_memory", lambda: 4 * MIB)
    with nothing_left_behind(), pytest.raises(PlanError) as refusal:
        prepare(small_job(valid=read_by_two(Rows()), loss=no_loss))
    assert (refusal.value.exit_code, refusal.value.where) == (2, "loader_workers, for Job.valid")
    assert "5 batches of 1.00 MiB in shared memory (shm), together 5.00 MiB; 4.00 MiB are free" in refusal.value.what
