"""The loss of every window, kept on the device until somebody wants to read it.

Reading one number from an accelerator makes the host wait for all work before it. So windows append their mean and its
weight, two references, and one read fetches any number of them together.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hasten.parallel.replicate import Ranks, sum_over_ranks
from hasten.train.losses import Count


@dataclass(frozen=True, slots=True)
class WindowLoss:
    """The mean loss of one optimizer step's window and the number of items it is the mean of, over all ranks."""

    mean: float
    count: float


class LossRecord:
    def __init__(self, device: torch.device, ranks: Ranks) -> None:
        self._device, self._ranks = device, ranks
        self._means: list[Tensor] = []
        self._counts: list[Count] = []

    def append(self, mean: Tensor, count: Count) -> None:
        self._means.append(mean)
        self._counts.append(count)

    def __len__(self) -> int:
        return len(self._means)

    def drain(self) -> list[WindowLoss]:
        """All windows since the last call, oldest first, with one host sync. NaN stays NaN."""
        if not self._means:
            return []
        means = torch.stack([mean.double() for mean in self._means])
        counts = torch.stack([torch.as_tensor(count, dtype=torch.float64).to(self._device) for count in self._counts])
        self._means, self._counts = [], []
        if self._ranks.many:
            totals = sum_over_ranks(means * counts, self._ranks)
            counts = sum_over_ranks(counts, self._ranks)
            means = totals / (counts + (counts == 0))
        pairs = zip(means.tolist(), counts.tolist(), strict=True)
        return [WindowLoss(mean, count) for mean, count in pairs]


def mean_loss(windows: Sequence[WindowLoss]) -> float:
    """The mean over all items of several windows; NaN when no window holds an item, or one of them is NaN."""
    items = math.fsum(window.count for window in windows)
    if not items:
        return math.nan
    # A window without items has the mean 0 and no weight, so only true NaNs come through.
    return sum(window.mean * window.count for window in windows) / items
