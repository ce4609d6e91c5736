"""The microbatches of one optimizer step: forward and backward of each, and what they add up to.

A window of one microbatch on one rank is differentiated through its mean, as a plain loop does, and gives a plain
loop's bits. Any other window sums totals over a fixed reference, and is divided once by the global count, which is
known only at its end.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import has_torch_function_unary

from hasten.facts.job import Loss
from hasten.facts.ranks import Ranks
from hasten.training.step_parts.loss_record import LossRecord
from hasten.training.step_parts.losses import (
    Count,
    LossFunction,
    calling,
    check_count,
    checked,
    mean_and_count,
    never_zero,
)
from hasten.training.step_parts.master_weights import MasterWeights
from hasten.training.step_parts.phases import Observer, Phase, ignore
from hasten.training.step_parts.summed_loss import is_summed
from hasten.training.step_parts.window_sums import WindowSums, weighed

# Tensor.backward first sorts out tensors of any number and kind in Python, which is most of what a trainer costs in a
# short step. This is where it ends, in torch 2.9 to 2.13; a torch without it uses the public function.
_run_backward = getattr(torch.autograd.graph, "_engine_run_backward", None)


class Window:
    """begin(), then differentiate() for each microbatch, or add() for all of them at once, then divide_gradients()."""

    loss_is_summed = False  # although it is taken for a mean, as far as the first microbatch shows

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
        """Forget what was added up: the next microbatch is the first one of this step."""
        self.microbatches.clear()
        self._step = step
        self._only: tuple[Tensor, Count] | None = None  # mean and count of a window's one microbatch
        self._sums: WindowSums | None = None  # of any other window

    @property
    def is_open(self) -> bool:
        """Whether a microbatch was differentiated."""
        return self._only is not None or self._sums is not None

    def differentiate(self, batch: Any, samples: int, last: bool) -> Tensor:
        """Forward and backward of one microbatch of `samples` samples; its mean loss, detached, on the device.

        last: no other one follows. A microbatch of 0 samples weighs nothing; it is there so that a rank without data
            takes part in the reduction.
        """
        returned = self._returned(batch)
        if last and samples and self._alone and self._sums is None:
            mean, count = mean_and_count(returned, samples)
            backward(mean if self.scaler is None else self.scaler.scale(mean))
            mean = mean.detach()
            self._only = mean, count
        else:
            mean = self._differentiate_total(returned, samples, last)
        self.observer(Phase.BACKWARD)
        return mean

    def _returned(self, batch: Any) -> Loss | Tensor:
        self.observer(Phase.READY)
        returned = self._call(batch)
        if self._is_first:
            self._is_first, self.loss_is_summed = False, is_summed(checked(returned), batch)
        elif isinstance(returned, Loss):
            check_count(returned.count, self._step)
        self.observer(Phase.FORWARD)
        return returned

    def _differentiate_total(self, returned: Loss | Tensor, samples: int, last: bool) -> Tensor:
        sums = self._sums or WindowSums()
        total, count = weighed(returned, samples)
        if isinstance(returned, Loss) and returned.auxiliary is not None:
            self._differentiate_auxiliary(returned.auxiliary, samples, sums)
        if last:
            sums.announce(count, self._ranks, self._device)
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
        self._sums = self._sums or WindowSums()
        self._sums.add(total, count, samples)
        return self._sums.mean

    def divide_gradients(self, parameters: Sequence[Tensor]) -> None:
        """Make the gradients those of the global batch's mean; those of a window of one microbatch are already."""
        if self._sums is not None:
            self._sums.divide_gradients(parameters, self.reference, self._ranks, self._device)

    def record(self, losses: LossRecord) -> None:
        """Append the window's mean loss."""
        if self._only is not None:
            losses.append(*self._only)
        elif self._sums is not None:
            losses.append(self._sums.mean, self._sums.count, self._sums.auxiliary_mean, self._sums.samples)


def backward(objective: Tensor) -> None:
    """objective.backward(), of a plain scalar at less cost. Not for use inside torch.func."""
    plain = not objective.dim() and objective.dtype.is_floating_point
    if _run_backward is None or not plain or has_torch_function_unary(objective):
        torch.autograd.backward(objective)
        return
    # A new tensor of ones each time: a node may pass its input on, and the optimizer may then change it in place.
    ones = torch.ones_like(objective)
    _run_backward((objective,), (ones,), False, False, (), allow_unreachable=True, accumulate_grad=True)
