"""A job's metrics in an evaluation: over several ranks, the numbers that one process would have.

torchmetrics merges its own classes for which that is exact. Any other metric is given all predictions and targets on
each rank, one batch at a time, in the order in which one process would have seen them: slower, and exact.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from hasten.data.loading.device_transfer import map_tensors, place
from hasten.errors import RAISED, JobError
from hasten.facts.job import Loss, describe
from hasten.facts.ranks import Ranks
from hasten.parallel.collectives import gather_in_turn
from hasten.training.evaluation.torchmetrics_states import merges, without_merging
from hasten.training.failures.user_code import IN_THE_JOB
from hasten.training.step_parts.losses import at_least_float32

if TYPE_CHECKING:  # it takes seconds to load, and few jobs need it
    from torchmetrics import Metric

_HOST = torch.device("cpu")


class JobMetrics:
    """reset(), update() for each batch, compute(). ranks: that see different samples; all of them compute together."""

    def __init__(self, metrics: Mapping[str, Metric], device: torch.device, ranks: Ranks) -> None:
        # The job's own metrics are copied, not moved or filled.
        self._metrics = {name: _own_copy(metric, device, ranks) for name, metric in metrics.items()}
        self._device, self._ranks = device, ranks
        self._merged = {name for name, metric in self._metrics.items() if ranks.many and merges(metric)}
        self._given_all = [name for name in self._metrics if ranks.many and name not in self._merged]
        self._given_own = [name for name in self._metrics if name not in self._given_all]
        self._seen = list[tuple[Any, Any]]()  # predictions and targets of each batch, on the host

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
        self._update(self._given_own, returned.prediction, returned.target)
        if self._given_all:
            self._seen.append((_on_host(returned.prediction), _on_host(returned.target)))

    def compute(self) -> dict[str, float]:
        """Raises JobError for a metric of more than one number."""
        for seen in gather_in_turn(self._seen, self._ranks, self._device) if self._given_all else ():
            prediction, target = (place(each, self._device) for each in seen)
            self._update(self._given_all, prediction, target)
        self._seen.clear()
        return {name: self._computed(name) for name in self._metrics}

    def _update(self, names: list[str], prediction: Any, target: Any) -> None:
        if names:
            # A metric may add up without end, and a 16-bit sum soon stops growing.
            prediction, target = (map_tensors(each, at_least_float32) for each in (prediction, target))
        for name in names:
            with self._calling(name):
                self._metrics[name].update(prediction, target)

    def _computed(self, name: str) -> float:
        with self._calling(name):
            value: Any = self._metrics[name].compute()
        if isinstance(value, Tensor) and value.numel() == 1:
            value = value.item()
        if isinstance(value, int | float | np.integer | np.floating | np.bool):
            return float(value)
        fix = 'choose one that gives a real number, such as average="macro"'
        raise JobError("metrics", f"{name!r} computed {describe(value)}, not one number", fix)

    @contextmanager
    def _calling(self, name: str) -> Iterator[None]:
        """Inside, the metric exchanges states with other ranks, if torchmetrics merges it exactly. An exception passes
        through with a note of which metric raised it."""
        try:
            with nullcontext() if name in self._merged else without_merging():
                yield
        except RAISED as error:
            error.add_note(f"{IN_THE_JOB}metrics, in {name!r}")
            raise


def _own_copy(metric: Metric, device: torch.device, ranks: Ranks) -> Metric:
    """A copy that merges what these ranks have seen, where others see the same samples."""
    copied = copy.deepcopy(metric)
    if ranks.group is not None and isinstance(copied, nn.Module):
        for part in copied.modules():
            part.process_group = ranks.group  # of a module that is no metric, nothing reads it
    return copied.to(device) if hasattr(copied, "to") else copied


def _on_host(value: Any) -> Any:
    """A copy, as a model may write its next prediction to the memory of this one."""
    return place(map_tensors(value, lambda tensor: tensor.detach().to(_HOST, copy=True)), _HOST)
