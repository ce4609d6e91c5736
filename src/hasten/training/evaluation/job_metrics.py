"""A job's metrics in an evaluation: over several ranks, the numbers that one process would have.

torchmetrics merges its own classes for which that is exact. Any other metric is given all predictions and targets on
each rank, one batch at a time, in the order in which one process would have seen them: slower, and exact. A function is
given all of them at once, joined on the host.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from hasten.data.loading.device_transfer import map_tensors, place
from hasten.errors import RAISED, JobError
from hasten.facts.job import Loss, describe, is_function
from hasten.facts.ranks import Ranks
from hasten.parallel.collectives import gather_in_turn
from hasten.training.evaluation.torchmetrics_states import merges, without_merging
from hasten.training.failures.user_code import IN_THE_JOB
from hasten.training.step_parts.losses import at_least_float32, described

_HOST = torch.device("cpu")


class JobMetrics:
    """reset(), update() for each batch, compute(). ranks: that see different samples; all of them compute together."""

    def __init__(self, metrics: Mapping[str, Any], device: torch.device, ranks: Ranks) -> None:
        self._names, self._functions = [*metrics], {name: each for name, each in metrics.items() if is_function(each)}
        # The job's own metrics are copied, not moved or filled.
        objects = {name: each for name, each in metrics.items() if name not in self._functions}
        self._metrics = {name: _own_copy(metric, device, ranks) for name, metric in objects.items()}
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
        if not self._names:
            return
        if isinstance(returned, Tensor) or returned.prediction is None:
            raise JobError(
                "loss",
                "returned no prediction, which the job's metrics need",
                "return hasten.Loss(total, count, prediction=…, target=…)",
            )
        self._update(self._given_own, returned.prediction, returned.target)
        if self._given_all or self._functions:
            self._seen.append((_on_host(returned.prediction), _on_host(returned.target)))

    def compute(self) -> dict[str, float]:
        """Raises JobError for a metric of more than one number, and for predictions that no function can be given."""
        whole, read = list[tuple[Any, Any]](), self._given_all or self._functions
        for seen in gather_in_turn(self._seen, self._ranks, self._device) if read else ():
            if self._given_all:
                prediction, target = (place(each, self._device) for each in seen)
                self._update(self._given_all, prediction, target)
            if self._functions:
                whole.append(map_tensors(seen, at_least_float32))
        self._seen.clear()
        joined = [_joined([*each]) for each in zip(*whole, strict=True)]
        del whole
        return {name: self._computed(name, joined) for name in self._names}

    def _update(self, names: list[str], prediction: Any, target: Any) -> None:
        if names:
            # A metric may add up without end, and a 16-bit sum soon stops growing.
            prediction, target = (map_tensors(each, at_least_float32) for each in (prediction, target))
        for name in names:
            with self._calling(name):
                self._metrics[name].update(prediction, target)

    def _computed(self, name: str, joined: list[Any]) -> float:
        """joined: for a function, the predictions and the targets of the whole evaluation."""
        if name in self._metrics:
            with self._calling(name):
                value: Any = self._metrics[name].compute()
        else:
            # One function may write to what the next is given.
            given = joined if len(self._functions) == 1 else map_tensors(joined, torch.clone)
            function = self._functions[name]
            with self._calling(name, f", on {described(joined)}"):
                value = function(*(reversed(given) if _takes_target_first(function) else given))
        if isinstance(value, Tensor | np.ndarray) and np.prod(value.shape) == 1:
            value = value.item()
        if isinstance(value, int | float | np.integer | np.floating | np.bool):
            return float(value)
        fix = 'return one real number, such as by average="macro"; for several numbers, give several metrics'
        raise JobError("metrics", f"{name!r} computed {describe(value)}, not one number", fix)

    @contextmanager
    def _calling(self, name: str, given: str = "") -> Iterator[None]:
        """Inside, the metric exchanges states with other ranks, if torchmetrics merges it exactly. An exception passes
        through with a note of which metric raised it, on what."""
        try:
            with nullcontext() if name in self._merged else without_merging():
                yield
        except RAISED as error:
            error.add_note(f"{IN_THE_JOB}metrics, in {name!r}{given}")
            raise


def _takes_target_first(function: Callable[..., Any]) -> bool:
    """Whether its first argument is named y_true, as scikit-learn names the target in all its functions."""
    try:
        return next(iter(inspect.signature(function).parameters)) == "y_true"
    except (TypeError, ValueError):  # a built-in function
        return False


def _joined(parts: list[Any]) -> Any:
    """What each batch has, along the first dimension: tensors, or tuples and mappings of them. Raises JobError."""
    first = parts[0]
    if first is None:
        return None
    if isinstance(first, Mapping):
        return {key: _joined([each[key] for each in parts]) for key in cast("Mapping[Any, Any]", first)}
    if isinstance(first, tuple):
        return tuple(_joined([*each]) for each in zip(*parts, strict=True))
    try:
        return torch.cat(parts)
    except (TypeError, RuntimeError) as error:
        was = f"predictions or targets of a function cannot be joined over batches: {error}"
        write = "return tensors in the loss that differ in their first dimension alone"
        fix = f"{write}; or give a torchmetrics.Metric, or an object with update, compute and reset"
        raise JobError("metrics", was, fix) from error


def _own_copy(metric: Any, device: torch.device, ranks: Ranks) -> Any:
    """A copy that merges what these ranks have seen, where others see the same samples."""
    copied = copy.deepcopy(metric)
    if ranks.group is not None and isinstance(copied, nn.Module):
        for part in copied.modules():
            part.process_group = ranks.group  # of a module that is no metric, nothing reads it
    return copied.to(device) if hasattr(copied, "to") else copied


def _on_host(value: Any) -> Any:
    """A copy, as a model may write its next prediction to the memory of this one."""
    return place(map_tensors(value, lambda tensor: tensor.detach().to(_HOST, copy=True)), _HOST)
