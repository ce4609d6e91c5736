"""How metrics of torchmetrics merge the states of ranks. Checked on torchmetrics 1.5 to 1.9."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor


def merges(metric: Any) -> bool:
    """Whether torchmetrics computes from the states of all ranks what one process computes that sees all samples. True
    of its own classes that hold nothing but sums, minima and maxima."""
    loaded = sys.modules.get("torchmetrics")  # a job that has one of its metrics has loaded it
    if loaded is None or not isinstance(metric, loaded.Metric):
        return False
    is_own = type(metric).__module__.startswith("torchmetrics.")
    parts = [each for each in metric.modules() if isinstance(each, loaded.Metric)]  # of a wrapper, several
    states, by_default = metric._reductions, metric.sync_on_compute and metric.dist_sync_fn is None
    safe = {loaded.utilities.dim_zero_sum, loaded.utilities.dim_zero_min, loaded.utilities.dim_zero_max}
    tensors = all(isinstance(each, Tensor) for each in metric._defaults.values())
    return is_own and by_default and len(parts) == 1 and tensors and bool(states) and safe.issuperset(states.values())


@contextmanager
def without_merging() -> Iterator[None]:
    """Inside, no metric of torchmetrics merges states of ranks, wherever one of the user's classes keeps it."""
    loaded = sys.modules.get("torchmetrics")
    if loaded is None:
        yield
        return
    sync = loaded.Metric.sync
    loaded.Metric.sync = lambda *_, **__: None
    try:
        yield
    finally:
        loaded.Metric.sync = sync
