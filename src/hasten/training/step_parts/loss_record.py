"""The loss of every window, kept on the device until somebody wants to read it.

Reading one number from an accelerator makes the host wait for all work before it. So windows append their mean and its
weight, two references, and one read fetches any number of them together.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from operator import add
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hasten.facts.ranks import Ranks
from hasten.parallel.collectives import sum_over_ranks
from hasten.training.step_parts.losses import Count


class WindowLoss(NamedTuple):
    """The mean loss of one optimizer step's window and the number of items it is the mean of, over all ranks."""

    mean: float
    items: float


class LossRecord:
    def __init__(self, device: torch.device, ranks: Ranks) -> None:
        self._device, self._ranks = device, ranks
        self._queues = device.type != "cpu"  # a CPU has done its work by the time that its result is here
        self._rows: list[tuple[Count, Count, Count, Count]] = []

    def append(self, mean: Tensor, count: Count, auxiliary: Count = 0.0, samples: Count = 1) -> None:
        """One window on this rank: the mean over `count` items, and the auxiliary mean over `samples` samples."""
        self._rows.append((mean if self._queues else mean.item(), count, auxiliary, samples))

    def __len__(self) -> int:
        return len(self._rows)

    def drain(self, windows: int | None = None) -> list[WindowLoss]:
        """The oldest windows, all of them where no number is said, with one wait for the device. NaN stays NaN."""
        rows = self._rows[:windows]
        if not rows:
            return []
        columns = list(zip(*rows, strict=True))
        if self._ranks.many:
            means, counts, auxiliary, samples = map(self._tensor, columns)
            columns = *self._over_ranks(means, counts), *self._over_ranks(auxiliary, samples)
        means, counts, auxiliary, _ = map(self._numbers, columns)
        self._rows = self._rows[len(rows) :]  # only now: where the device fails or the wait is cut short, all are kept
        return list(map(WindowLoss._make, zip(map(add, means, auxiliary), counts, strict=True)))

    def state_dict(self) -> dict[str, Any]:
        """The windows that nobody drained yet, over all ranks, as numbers; waits for the device, and for the ranks."""
        rows = [[*map(float, row)] for row in self._rows]
        if rows and self._ranks.many:
            means, counts, auxiliary, samples = map(self._tensor, zip(*rows, strict=True))
            columns = *self._over_ranks(means, counts), *self._over_ranks(auxiliary, samples)
            rows = [[*row] for row in zip(*(column.tolist() for column in columns), strict=True)]
        return {"rows": rows}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The leader has what all ranks had; on the others it weighs nothing."""
        weight = 1.0 if self._ranks.leads else 0.0
        self._rows = [
            (mean, count * weight, auxiliary, samples * weight) for mean, count, auxiliary, samples in state["rows"]
        ]

    def _numbers(self, column: Sequence[Count] | Tensor) -> list[float]:
        if isinstance(column, Tensor):
            return column.tolist()
        return self._tensor(column).tolist() if Tensor in set(map(type, column)) else list(map(float, column))

    def _tensor(self, column: Sequence[Count]) -> Tensor:
        kinds = {value.dtype if isinstance(value, Tensor) else None for value in column}
        if len(kinds) > 1 or None in kinds:
            column = [torch.as_tensor(value, dtype=torch.float64, device=self._device) for value in column]
        return torch.stack(column).double()  # pyright: ignore[reportArgumentType]

    def _over_ranks(self, means: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        totals, weights = sum_over_ranks(means * weights, self._ranks), sum_over_ranks(weights, self._ranks)
        return totals / (weights + (weights == 0)), weights


def mean_loss(windows: Sequence[WindowLoss]) -> float:
    """The mean over all items of several windows; NaN when no window holds an item, or one of them is NaN."""
    items = math.fsum(window.items for window in windows)
    if not items:
        return math.nan
    # A window without items has the mean 0 and no weight, so only true NaNs come through.
    return sum(window.mean * window.items for window in windows) / items
