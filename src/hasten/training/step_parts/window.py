"""The microbatches of one optimizer step: forward and backward of each, and what they add up to.

A window of one microbatch on one rank is differentiated through its mean, as a plain loop does, with the same bits. Any
other window sums totals, and is divided once by the global count, which is known only at its end. Loss.auxiliary, a
mean over samples, has another denominator, so its gradients are summed separately.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum, auto
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from hasten.errors import RAISED, JobError
from hasten.facts.job import Loss
from hasten.facts.ranks import Ranks
from hasten.parallel.collectives import mean_over_ranks, sum_over_ranks
from hasten.training.setup.optimizers import MasterWeights
from hasten.training.step_parts.losses import (
    Count,
    LossFunction,
    LossRecord,
    at_least_float32,
    calling,
    check_count,
    checked,
    count_of,
    mean_and_count,
    never_zero,
    total_of,
)
from hasten.training.step_parts.torch_ops import backward, multiply, present


class Phase(Enum):
    """What has just begun or ended in a step, for an observer such as the doctor's clock. Batches are placed, and
    microbatches begin and end, in this order; an update follows a window's last microbatch. Evaluations place batches
    too."""

    PLACING = auto()  # a batch is about to be put on the device
    PLACED = auto()
    READY = auto()  # a microbatch is here, and its forward pass begins
    FORWARD = auto()  # the forward pass and the loss are over
    BACKWARD = auto()  # the backward pass is over, with weighing and loss scaling
    UPDATE = auto()  # gradients were divided, unscaled, checked, clipped and applied, or the step was skipped


Observer = Callable[[Phase], None]


def ignore(phase: Phase) -> None:
    """The observer of a run that nobody observes."""


class Window:
    """begin(), then differentiate() for each microbatch, or add() for all of them at once, then divide_gradients()."""

    def __init__(
        self,
        model: nn.Module,
        loss: LossFunction,
        *,
        device: torch.device,
        ranks: Ranks,
        autocast: torch.dtype | None,
        masters: MasterWeights,
        scaler: torch.amp.GradScaler | None,
        reference: float,
    ) -> None:
        """ranks: that train on different samples. reference: about how many items a microbatch has; it keeps sums in
        range, and changes results by rounding alone. Change it between two windows."""
        self.scaler, self.reference = scaler, reference
        self.observer: Observer = ignore  # called at each Phase
        self._model, self._device, self._ranks, self._alone = model, device, ranks, not ranks.many
        self._masters, self._call = masters, partial(calling(device, autocast), loss, model)
        self._is_first, self._step = True, 0
        self.microbatches = list[tuple[Any, int]]()
        self.begin()

    def begin(self, step: int = 0) -> None:
        """Drop what was added up: the next microbatch is the first one of this step."""
        self.microbatches.clear()
        self._step = step
        self._only: tuple[Tensor, Count] | None = None  # mean and count of a window's one microbatch
        self._sums: WindowSums | None = None  # of any other window
        self._parts: dict[str, Tensor] = {}  # sums over this rank's items

    @property
    def is_open(self) -> bool:
        """Whether a microbatch was differentiated."""
        return self._only is not None or self._sums is not None

    @property
    def mean(self) -> Tensor | None:
        """The mean loss on this rank so far."""
        return self._only[0] if self._only is not None else None if self._sums is None else self._sums.mean

    def differentiate(self, batch: Any, samples: int, last: bool) -> Tensor:
        """Forward and backward of one microbatch of `samples` samples; its mean loss, detached, on the device.

        last: no other one follows. A microbatch of 0 samples weighs nothing; it is there so that a rank without data
            takes part in the reduction.
        """
        returned = self._returned(batch)
        try:
            if last and samples and self._alone and self._sums is None:
                mean, count = mean_and_count(returned, samples)
                backward(mean if self.scaler is None else self.scaler.scale(mean))
                mean = mean.detach()
                self._only = mean, count
            else:
                mean = self._differentiate_total(returned, samples, last)
            if isinstance(returned, Loss) and returned.parts:
                self._add_parts(returned.parts, samples)
        except RAISED:
            if not torch.is_grad_enabled():
                what = "cannot be differentiated: it, or another function of the job, has disabled gradients"
                raise JobError("loss", what, "write `with torch.no_grad():` around what needs no gradient") from None
            checked(returned, step=self._step)
            raise
        self.observer(Phase.BACKWARD)
        return mean

    def _add_parts(self, parts: Mapping[str, Tensor], samples: int) -> None:
        for name, value in parts.items() if samples else ():
            value, sums = at_least_float32(value.detach()), self._parts
            sums[name] = sums[name] + value if name in sums else value

    def _returned(self, batch: Any) -> Loss | Tensor:
        self.observer(Phase.READY)
        returned = self._call(batch)
        if self._is_first:
            self._is_first = False
            checked(returned)
        elif isinstance(returned, Loss):
            check_count(returned.count, self._step)
        self.observer(Phase.FORWARD)
        return returned

    def _differentiate_total(self, returned: Loss | Tensor, samples: int, last: bool) -> Tensor:
        sums = self._sums or WindowSums(self._ranks, self._device)
        total, count = weighed(returned, samples)
        if isinstance(returned, Loss) and returned.auxiliary is not None:
            self._differentiate_auxiliary(returned.auxiliary, samples, sums)
        if last:
            sums.announce(count)
        backward(self.objective(total))
        sums.add(total, count, samples)
        self._sums = sums
        return total.detach() / never_zero(count)

    def _differentiate_auxiliary(self, auxiliary: Tensor, samples: int, sums: WindowSums) -> None:
        scaled = self._scaled(auxiliary.float() * samples)
        parameters = [parameter for parameter in self._model.parameters() if parameter.requires_grad]
        parts = torch.autograd.grad(scaled, parameters, retain_graph=True, allow_unused=True)
        sums.add_auxiliary(auxiliary, samples, self._masters.replace(parameters), parts)

    def objective(self, total: Tensor) -> Tensor:
        """What a backward pass begins at, of a microbatch's total."""
        return self._scaled(total / self.reference)

    def _scaled(self, objective: Tensor) -> Tensor:
        return objective if self.scaler is None else self.scaler.scale(objective)

    def add(self, total: Tensor, count: Tensor, samples: int) -> Tensor:
        """Count microbatches whose backward passes are done; their mean loss, detached."""
        self._sums = self._sums or WindowSums(self._ranks, self._device)
        self._sums.add(total, count, samples)
        return self._sums.mean

    def divide_gradients(self, parameters: Sequence[Tensor]) -> None:
        """Make the gradients those of the global batch's mean; those of a window of one microbatch are already."""
        if self._sums is not None:
            self._sums.divide_gradients(parameters, self.reference)

    def record(self, losses: LossRecord) -> None:
        """Append the window's mean loss."""
        if self._only is not None:
            losses.append(*self._only, parts=self._parts)
        elif self._sums is not None:
            sums = self._sums
            losses.append(sums.mean, sums.count, sums.auxiliary_mean, sums.samples, self._parts)


class WindowSums:
    """The sums of one window on this rank; add() for each microbatch, divide_gradients() once."""

    def __init__(self, ranks: Ranks, device: torch.device) -> None:
        """ranks: that train on different samples."""
        self._ranks, self._device = ranks, device
        self.samples = 0
        self.count: Count = 0
        self._total = torch.zeros(())
        self._auxiliary_total: Tensor | float = 0.0
        self._auxiliary_gradients: dict[Tensor, Tensor] = {}
        self._has_auxiliary = False
        self._everywhere: tuple[Tensor, dist.Work | None] | None = None  # the count over all ranks, being reduced

    def announce(self, last: Count) -> None:
        """Start the reduction of the counts over ranks, which runs beside the window's last backward pass. last: count
        of that microbatch, which add() has not seen yet. All ranks call it, or none."""
        self._everywhere = self._begin_sum(self.count + last)

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

    def divide_gradients(self, parameters: Sequence[Tensor], reference: float) -> None:
        """Make the gradients of total / reference those of the global batch's mean, the auxiliary term included."""
        count, work = self._everywhere or self._begin_sum(self.count)
        if work is not None:
            work.wait()
        # The replica divides by the number of ranks; the only true denominator is the global count.
        multiply(present(parameters), reference * self._ranks.size / (count + (count == 0)))
        if self._has_auxiliary:
            self._add_auxiliary(parameters)

    def _begin_sum(self, count: Count) -> tuple[Tensor, dist.Work | None]:
        total = torch.as_tensor(count, dtype=torch.float64, device=self._device).clone()
        return total, dist.all_reduce(total, group=self._ranks.group, async_op=True) if self._ranks.many else None

    def _add_auxiliary(self, parameters: Sequence[Tensor]) -> None:
        ranks, mine = self._ranks, self._auxiliary_gradients
        samples = sum_over_ranks(torch.tensor(float(self.samples), dtype=torch.float64, device=self._device), ranks)
        here = torch.tensor([each in mine for each in parameters], dtype=torch.float32)
        anywhere = sum_over_ranks(here.to(self._device), ranks) if ranks.many else here
        # Ranks must reduce the same parameters: those that the term has a gradient for on any rank.
        owners = [each for each, reached in zip(parameters, anywhere.tolist(), strict=True) if reached]
        sums = [mine[owner] if owner in mine else torch.zeros_like(owner) for owner in owners]
        mean_over_ranks(sums, ranks)
        multiply(sums, ranks.size / samples.clamp(min=1))
        for parameter, part in zip(owners, sums, strict=True):
            parameter.grad = part if parameter.grad is None else parameter.grad.add_(part)


def weighed(returned: Loss | Tensor, samples: int) -> tuple[Tensor, Count]:
    """Total (float32 or wider, differentiable) and count of a microbatch, without the auxiliary term. Both are 0 for a
    microbatch of 0 samples, which is there so that a rank without data takes part in every reduction."""
    weight = 1.0 if samples else 0.0
    total = total_of(returned, samples)
    return (total if total.dtype is torch.float64 else total.float()) * weight, count_of(returned, samples) * weight
