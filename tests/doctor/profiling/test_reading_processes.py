"""What a look tells of those who read for a run."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from hasten.doctor.profiling.run_profiler import profile_run
from hasten.facts.plan import make_plan
from support.doctor.faulty_model_job import job


class Pictures(Dataset[Any]):
    steady_reason = "each is the same whenever it is read"  # so threads may read them

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return torch.full((1, 6, 6), index / 64), index % 3


def test_threads_have_one_core_for_all_of_them():
    plan = make_plan(loader_workers=(2, {"kind": "threads"}))
    look = profile_run(job(train=Pictures()), plan, report=lambda what: None)
    assert (look.workers, look.reading_cores) == (2, 1)
