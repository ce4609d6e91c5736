"""A job's metrics in an evaluation: over several ranks, the numbers that one process would have.

torchmetrics sums what ranks have seen, and takes the least or the greatest of it: its own classes that hold no more
than that are left to it. Of any other metric nobody knows what it keeps, and lists of a rank without a sample have no
format. Those are given all predictions and targets on each rank, in the order in which one process would have seen
them. That keeps a rank's share of them on the host until its last batch, and sends them one batch at a time: slower,
and right. Sent as they come, they would bind ranks to equally many batches, and one that runs out of memory halves its
own.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from hasten.data.loading.device_transfer import map_tensors, place
from hasten.errors import JobError
from hasten.facts.job import Loss
from hasten.facts.ranks import Ranks
from hasten.parallel.collectives import gather_in_turn
from hasten.training.step_parts.losses import at_least_float32

if TYPE_CHECKING:  # it takes seconds to load, and few jobs need it
    from torchmetrics import Metric

_HOST = torch.device("cpu")


class _Seen(NamedTuple):
    """Of one batch, on the host. on: the types of the devices that each of the two was on."""

    prediction: Any
    target: Any
    on: tuple[set[str], set[str]]


class JobMetrics:
    """reset(), update() for each batch, compute(). ranks: that see different samples; all of them compute together."""

    def __init__(self, metrics: Mapping[str, Metric], device: torch.device, ranks: Ranks) -> None:
        # The job's own metrics are its own: they are copied, not moved or filled.
        self._metrics = {name: _own_copy(metric, device, ranks) for name, metric in metrics.items()}
        self._device, self._ranks = device, ranks
        self._merged = {name for name, metric in self._metrics.items() if ranks.many and merges(metric)}
        self._told_all = [name for name in self._metrics if ranks.many and name not in self._merged]
        self._seen = list[_Seen]()

    def reset(self) -> None:
        self._seen.clear()
        for metric in self._metrics.values():
            metric.reset()

    def update(self, returned: Loss | Tensor) -> None:
        """Metrics are given 16-bit predictions and targets in float32.

        Raises JobError for a loss that returned no prediction.
        """
        if not self._metrics:
            return
        if isinstance(returned, Tensor) or returned.prediction is None:
            raise JobError(
                "loss",
                "returned no prediction, which the job's metrics need",
                "return hasten.Loss(total, count, prediction=…, target=…)",
            )
        if len(self._told_all) < len(self._metrics):
            prediction, target = map(_in_float32, (returned.prediction, returned.target))
            for name in self._metrics:
                if name not in self._told_all:
                    self._update(name, prediction, target)
        if self._told_all:
            prediction, target = returned.prediction, returned.target
            self._seen.append(_Seen(_on_host(prediction), _on_host(target), (_devices(prediction), _devices(target))))

    def compute(self) -> dict[str, float]:
        """Raises JobError for a metric of more than one number."""
        for seen in gather_in_turn(self._seen, self._ranks, self._device) if self._told_all else ():
            prediction, target = map(_in_float32, map(self._put_back, seen[:2], seen.on))
            for name in self._told_all:
                self._update(name, prediction, target)
        self._seen.clear()
        return {name: self._computed(name) for name in self._metrics}

    def _update(self, name: str, prediction: Any, target: Any) -> None:
        with self._exchanging(name):
            self._metrics[name].update(prediction, target)

    def _computed(self, name: str) -> float:
        with self._exchanging(name):
            return _number(name, self._metrics[name].compute())

    def _put_back(self, value: Any, on: set[str]) -> Any:
        return value if on == {_HOST.type} else place(value, self._device)

    def _exchanging(self, name: str) -> AbstractContextManager[None]:
        """Inside, the metric talks with other ranks, if it is one that has to."""
        return nullcontext() if name in self._merged else _with_nobody()


def merges(metric: Any) -> bool:
    """Whether torchmetrics makes of what ranks have seen, each by itself, what one process has that sees all of it."""
    loaded = sys.modules.get("torchmetrics")  # who gives one of its metrics has loaded it
    if (
        loaded is None
        or not isinstance(metric, loaded.Metric)
        or not type(metric).__module__.startswith("torchmetrics.")
    ):
        return False
    parts = [each for each in metric.modules() if isinstance(each, loaded.Metric)]  # of a wrapper, several
    states, by_default = metric._reductions, metric.sync_on_compute and metric.dist_sync_fn is None
    safe = {loaded.utilities.dim_zero_sum, loaded.utilities.dim_zero_min, loaded.utilities.dim_zero_max}
    tensors = all(isinstance(each, Tensor) for each in metric._defaults.values())
    return by_default and len(parts) == 1 and tensors and bool(states) and safe.issuperset(states.values())


@contextmanager
def _with_nobody() -> Iterator[None]:
    """Inside, no metric of torchmetrics adds up what ranks hold, wherever one of the user's keeps it."""
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


def _own_copy(metric: Metric, device: torch.device, ranks: Ranks) -> Metric:
    """Which adds up what these ranks have seen, where others see the same samples."""
    copied = copy.deepcopy(metric)
    if ranks.group is not None and isinstance(copied, nn.Module):
        for part in copied.modules():
            part.process_group = ranks.group  # of what is no metric, nobody reads that
    return copied.to(device) if hasattr(copied, "to") else copied


def _in_float32(value: Any) -> Any:
    """A metric may add up for ever, and a 16-bit sum soon stops growing."""
    return map_tensors(value, at_least_float32)


def _on_host(value: Any) -> Any:
    """A copy, as a model may write its next prediction to the memory of this one."""
    return place(map_tensors(value, lambda tensor: tensor.detach().to(_HOST, copy=True)), _HOST)


def _devices(value: Any) -> set[str]:
    found = set[str]()
    map_tensors(value, lambda tensor: found.add(tensor.device.type) or tensor)
    return found


def _number(name: str, value: Any) -> float:
    if isinstance(value, Tensor) and value.numel() == 1:
        return float(value)
    if isinstance(value, int | float | np.number):
        return float(value)
    raise JobError(
        "metrics",
        f"{name!r} computed {type(value).__name__}, not one number",
        'choose one that gives a scalar, such as average="macro"',
    )
