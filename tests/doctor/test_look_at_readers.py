"""What a look tells of those who read for a run."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import Dataset

from hasten.doctor.observe import observe_job
from hasten.facts.machine import usable_cores
from hasten.facts.plan import make_plan
from look_jobs import job


class Pictures(Dataset[Any]):
    steady_reason = "each is the same whenever it is read"  # so threads may read them

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return torch.full((1, 6, 6), index / 64), index % 3


@pytest.mark.parametrize(
    ("workers", "cores"), [((2, {"kind": "threads"}), 1), (2, min(2, usable_cores()))], ids=["threads", "processes"]
)
def test_readers_have_a_core_each_where_there_is_one_and_threads_one_for_all(workers, cores):
    look = observe_job(job(train=Pictures()), make_plan(loader_workers=workers), tell=lambda what: None)
    assert (look.workers, look.reading_cores) == (2, cores)
