"""The sums of a window of several microbatches, or over several ranks.

Totals, not means: the number of items is known only when the window is complete, and a mean of means would weigh a
short microbatch like a long one. Loss.auxiliary, a mean over samples, has another denominator, so its gradients are
summed separately until both are divided.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from hasten.facts.job import Loss
from hasten.facts.ranks import Ranks
from hasten.parallel.collectives import mean_over_ranks, sum_over_ranks
from hasten.training.step_parts.gradients import multiply, present
from hasten.training.step_parts.losses import Count, count_of, never_zero, total_of


class WindowSums:
    """The sums of one window on this rank; add() for each microbatch, divide_gradients() once."""

    def __init__(self) -> None:
        self.samples = 0
        self.count: Count = 0
        self._total = torch.zeros(())
        self._auxiliary_total: Tensor | float = 0.0
        self._auxiliary_gradients: dict[Tensor, Tensor] = {}
        self._has_auxiliary = False
        self._everywhere: tuple[Tensor, dist.Work | None] | None = None  # the count over all ranks, being reduced

    def announce(self, last: Count, ranks: Ranks, device: torch.device) -> None:
        """Start the reduction of the counts over ranks, which runs beside the window's last backward pass. last: count
        of that microbatch, which add() has not seen yet. All ranks call it, or none."""
        self._everywhere = self._begin_sum(self.count + last, ranks, device)

    def add(self, total: Tensor, count: Count, samples: int) -> None:
        """Count one microbatch, once its backward pass is done; see weighed()."""
        self._total, self.count = self._total + total.detach(), self.count + count
        self.samples += samples

    def add_auxiliary(
        self, auxiliary: Tensor, samples: int, parameters: Sequence[Tensor], gradients: Sequence[Tensor | None]
    ) -> None:
        """Count a microbatch's auxiliary mean. gradients: of its product with the samples, for each parameter; None
        where it has none."""
        sums, self._has_auxiliary = self._auxiliary_gradients, True
        for parameter, part in zip(parameters, gradients, strict=True):
            if part is not None:
                sums[parameter] = sums[parameter] + part if parameter in sums else part.to(parameter.dtype)
        self._auxiliary_total = self._auxiliary_total + auxiliary.detach().float() * samples

    @property
    def mean(self) -> Tensor:
        """Of all items on this rank, without the auxiliary term."""
        return self._total / never_zero(self.count)

    @property
    def auxiliary_mean(self) -> Tensor | float:
        return self._auxiliary_total / max(self.samples, 1)

    def divide_gradients(
        self, parameters: Sequence[Tensor], reference: float, ranks: Ranks, device: torch.device
    ) -> None:
        """Make the gradients of total / reference those of the global batch's mean, the auxiliary term included."""
        count, work = self._everywhere or self._begin_sum(self.count, ranks, device)
        if work is not None:
            work.wait()
        # The replica divides by the number of ranks; the only true denominator is the global count.
        multiply(present(parameters), reference * ranks.size / (count + (count == 0)))
        if self._has_auxiliary:
            self._add_auxiliary(parameters, ranks, device)

    def _begin_sum(self, count: Count, ranks: Ranks, device: torch.device) -> tuple[Tensor, dist.Work | None]:
        total = torch.as_tensor(count, dtype=torch.float64, device=device).clone()
        return total, dist.all_reduce(total, group=ranks.group, async_op=True) if ranks.many else None

    def _add_auxiliary(self, parameters: Sequence[Tensor], ranks: Ranks, device: torch.device) -> None:
        samples = sum_over_ranks(torch.tensor(float(self.samples), dtype=torch.float64, device=device), ranks)
        owners = self._reached_on_any_rank(parameters, ranks, device)
        mine = self._auxiliary_gradients
        sums = [mine[owner] if owner in mine else torch.zeros_like(owner) for owner in owners]
        mean_over_ranks(sums, ranks)
        multiply(sums, ranks.size / samples.clamp(min=1))
        for parameter, part in zip(owners, sums, strict=True):
            parameter.grad = part if parameter.grad is None else parameter.grad.add_(part)

    def _reached_on_any_rank(self, parameters: Sequence[Tensor], ranks: Ranks, device: torch.device) -> list[Tensor]:
        """Those that the auxiliary term has a gradient for on any rank: ranks must reduce the same ones."""
        here = torch.tensor([each in self._auxiliary_gradients for each in parameters], dtype=torch.float32)
        anywhere = sum_over_ranks(here.to(device), ranks) if ranks.many else here
        return [each for each, reached in zip(parameters, anywhere.tolist(), strict=True) if reached]


def weighed(returned: Loss | Tensor, samples: int) -> tuple[Tensor, Count]:
    """Total (float32 or wider, differentiable) and count of a microbatch, without the auxiliary term. Both are 0 for a
    microbatch of 0 samples, which is there so that a rank without data takes part in every reduction."""
    weight = 1.0 if samples else 0.0
    total = total_of(returned, samples)
    return (total if total.dtype is torch.float64 else total.float()) * weight, count_of(returned, samples) * weight
