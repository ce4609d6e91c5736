"""What torch.utils.data.get_worker_info() returns in a loader worker of ours.

Data sets, collate functions and torch's default_collate ask it whether they run in a worker. torch has no public way to
set it. Checked on torch 2.13.0.
"""

from __future__ import annotations

from typing import Any

from torch.utils.data._utils import worker


def set_worker_info(*, number: int, workers: int, seed: int, dataset: Any) -> None:
    """seed: get_worker_info().seed; dataset: the worker's copy of the data set."""
    worker._worker_info = worker.WorkerInfo(id=number, num_workers=workers, seed=seed, dataset=dataset)
