"""One optimizer step, in the only order that is right.

    for each microbatch:   [no sync unless last]  autocast(forward, loss) → scale → backward
    at the boundary:       divide by the count → unscale → finite? → clip → update
    only if it applied:    step counter → schedule → averages
    in any case:           scaler → record the loss → clear gradients

Every ordering bug of trainers is an ordering inside this file, so it is in one place and nowhere else. The microbatches
and the division are called from here and written in step_parts/window.py; the strategy of the ranks is around them
(parallel/strategy.py). Where the gradient's norm is needed for clipping, a finite norm is the finite check.

Where every optimizer is fused on an accelerator, the device decides whether the update applies, and the host reads the
answer one step later: the third line then comes at the start of the next step. So the host never waits, yet schedule
and averages change on applied updates alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grads_with_norm_
from torch.optim import Optimizer

from hasten.errors import JobError, NonFinite
from hasten.parallel.strategy import Single, Strategy
from hasten.techniques.setup import StepOptions
from hasten.training.setup.optimizers import MasterWeights
from hasten.training.state.window_snapshot import StepRollback
from hasten.training.step_parts import gradients as gradient
from hasten.training.step_parts.losses import LossFunction, LossRecord
from hasten.training.step_parts.skips import (
    FiniteCheck,
    Skips,
    gradient_sizes,
    non_finite_sizes,
    non_finite_weights,
)
from hasten.training.step_parts.torch_ops import multiply, present
from hasten.training.step_parts.window import Phase, Window


class Step:
    """One optimizer step over a window of microbatches, with a loader and a loop of your own.

    Call accumulate(batch, samples, last) for each microbatch, and update() after the last one of a window.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: LossFunction,
        optimizers: Sequence[Optimizer],
        options: StepOptions | None = None,
        *,
        strategy: Strategy | None = None,
        masters: MasterWeights | None = None,
        reference: float = 1.0,
        before_update: Callable[[int], None] = lambda step: None,
        after_update: Callable[[], None] = lambda: None,
        after_update_reads_buffers: bool = False,
        rollback: StepRollback | None = None,
    ) -> None:
        """
        optimizers: together they hold every parameter that is trained; they all step, or none does.
        strategy: that has prepared the model and the loss; None is one process.
        reference: about how many items a microbatch has; see Window.
        before_update: called with each step's number before parameters change, and may refuse the step by raising;
            after_update, once for each applied update, before the next one.
        after_update_reads_buffers: it must then come before the next forward pass, which updates batch norm's running
            statistics; the host waits for the device's answer there.
        rollback: of steps whose update did not apply.
        """
        self._options = options = options or StepOptions()
        self.model, self.optimizers = model, list(optimizers)
        self._masters = MasterWeights(model) if masters is None else masters
        self._device = device = next(model.parameters()).device
        self._strategy = strategy or Single(device)
        self._sharding, ranks = self._strategy.sharding, self._strategy.grid.data
        self.names, trained = zip(*model.named_parameters(), strict=True)
        self.parameters = self._masters.replace(trained)
        self._without_optimizer = _not_held(self.parameters, self.optimizers)
        # A weight may be infinite on purpose, as a mask is, from the start on.
        infinite = set(non_finite_weights(self._named()))
        self._expected_finite = [name for name in self.names if name not in infinite]
        self._norm_is_finite_check = (
            options.clip_norm is not None
            and options.clip_value is None
            and options.clip_norm_type in gradient.NORMS_THAT_TELL
        )
        self.window = Window(
            model,
            loss,
            device=device,
            ranks=ranks,
            autocast=options.autocast,
            masters=self._masters,
            scaler=torch.amp.GradScaler(device.type) if options.scale_gradients else None,
            reference=reference,
        )
        self._is_finite = FiniteCheck(self.parameters, device)
        self.skips = Skips(device, decides_on_device(device, self.optimizers), after_update, rollback)
        self.losses = LossRecord(device, ranks)
        self.gradient_norm: Tensor | None = None  # of the last window, before clipping; None where none was measured
        self.unreached: list[str] | None = None  # parameters without a gradient in the first window, on any rank
        self._before_update, self._settles_first = before_update, after_update_reads_buffers
        self.is_updating = False  # stays True after an exception while parameters were changing
        self.abandon_window()

    # ── one microbatch ──────────────────────────────────────────────────────────────────────────────────────────────

    def accumulate(self, batch: Any, samples: int, last: bool = True) -> Tensor:
        """Forward and backward of one microbatch of `samples` samples; its mean loss, detached, on the device.

        last: no other microbatch follows before update(). A microbatch of 0 samples weighs nothing; it is there so that
            a rank without data takes part in the reduction. What raises here or in update() leaves no window open.
        """
        if self._is_complete:
            raise RuntimeError("the window's last microbatch is in: update() comes before the next accumulate()")
        if self._settles_first and not self.window.is_open:
            self.skips.settle()
        self._is_complete = last
        try:
            return self._strategy.forward_backward(self.window, batch, samples, last)
        except BaseException:
            self.abandon_window()
            raise

    # ── the boundary ────────────────────────────────────────────────────────────────────────────────────────────────

    def update(self) -> None:
        """Apply the window's gradients, unless one of them is not finite: then nothing changes.

        Raises NonFinite for a skip that is not part of finding a loss scale; the weights are then unharmed.
        """
        if not self.window.is_open:
            raise RuntimeError("update() was called before any accumulate()")
        self.gradient_norm, scaler = None, self.window.scaler
        try:
            if self.skips.deferred:
                self.skips.settle()
            self.window.divide_gradients(self.parameters)
            if self._sharding.partial:
                self._sharding.complete((name, each) for name, each in self._named() if each.requires_grad)
            if scaler is not None:
                self._unscale(scaler)
            gradients = present(self.parameters)
            if not gradients and not self._sharding.owners:  # the blocks of a stage may be frozen
                raise JobError("loss", "depends on no parameter of the model", "compute it with the model passed to it")
            if self.unreached is None:
                self.unreached = self._found_unreached()
            overflow = self._overflow(gradients) if self._norm_is_finite_check else self._non_finite(gradients)
            self._apply(gradients, overflow)
            if scaler is not None:
                scaler.update()
            self.window.record(self.losses)  # a window that fails before may be taken again, and counts once
            self.is_updating = False
        except BaseException:
            self._is_finite.clear()
            if scaler is not None:  # else it would refuse to unscale the next window
                scaler.update(self._factor(scaler))
            raise
        finally:
            self.abandon_window()
        self.window.observer(Phase.UPDATE)

    def _unscale(self, scaler: torch.amp.GradScaler) -> None:
        for optimizer in self.optimizers:
            scaler.unscale_(optimizer)
        if self._without_optimizer:  # counts in a norm as well
            multiply(present(self._without_optimizer), 1 / self._factor(scaler))

    def _factor(self, scaler: torch.amp.GradScaler) -> Tensor:
        return scaler.scale(torch.ones((), dtype=torch.float32, device=self._device))

    def _non_finite(self, gradients: list[Tensor]) -> Tensor:
        found = self._is_finite(gradients)
        return self._sharding.anywhere(found) if self._sharding.is_tensor_or_pipeline_parallel else found

    def _overflow(self, gradients: list[Tensor]) -> Tensor:
        """Measure the norm: 1.0 where it is not finite. It reads every gradient, so it replaces the finite check; and
        it can overflow where each is finite: clipping by it would then change nothing but the momentum."""
        kind = self._options.clip_norm_type
        if self._sharding.is_tensor_or_pipeline_parallel:
            named = {name: each.grad for name, each in self._named() if each.grad is not None}
            self.gradient_norm = self._sharding.norm(named, lambda some: gradient.norm(some, kind), kind)
        else:
            self.gradient_norm = gradient.norm(gradients, kind)
        return (~self.gradient_norm.isfinite()).float()

    def _apply(self, gradients: list[Tensor], non_finite: Tensor) -> None:
        """Clip, by value and then by norm, and let the optimizers step, unless something is not finite."""
        options, scaling = self._options, self.window.scaler is not None
        # Until one update has applied the host decides: a fused optimizer that skips its first one creates its state
        # and leaves it uninitialised.
        on_device = self.skips.deferred and self.skips.applied > 0
        if not on_device and non_finite.item():
            self._skip()
            return
        # The answer comes when the gradients are gone. Under loss scaling, nobody asks which it was of a first skip.
        sizes = gradient_sizes(self._named()) if on_device and (self.skips.in_a_row or not scaling) else []
        if options.clip_value is not None:
            gradient.clip_value(self.parameters, gradients, options.clip_value)
        if options.clip_norm is not None:
            if not self._norm_is_finite_check:
                overflow = self._overflow(gradients)
                if not on_device and overflow.item():
                    self._skip()
                    return
                non_finite = torch.maximum(non_finite, overflow)
            assert self.gradient_norm is not None  # measured here, or before it was judged
            clip_grads_with_norm_(self.parameters, options.clip_norm, self.gradient_norm)
        self._before_update(self.skips.attempted + 1)
        self.is_updating = True
        for optimizer in self.optimizers:
            if on_device:
                optimizer.grad_scale, optimizer.found_inf = None, non_finite  # pyright: ignore[reportAttributeAccessIssue]
            optimizer.step()
        self._masters.write_back()
        if on_device:
            self.skips.defer(non_finite, partial(self._why, sizes), scaling=scaling)
            self._is_finite.clear()
        else:
            self.skips.apply()

    def _skip(self) -> None:
        self._is_finite.clear()
        # A norm that overflows is no matter of the loss scale: gradients are unscaled before it is measured.
        sizes = gradient_sizes(self._named())
        scaling = self.window.scaler is not None and bool(non_finite_sizes(sizes))
        self.skips.skip(partial(self._why, sizes, self.window.mean), scaling=scaling)

    def _why(self, sizes: list[tuple[str, Tensor]], loss: Tensor | None = None) -> str:
        """The reason why an update did not apply, from the sizes of its gradients. loss: of its window, where it is
        still known."""
        found = non_finite_sizes(sizes)
        what = "the norm of the gradients is not finite, although every gradient is"
        if found:
            what = f"a gradient of {found[0]} is not finite"
            if loss is not None and not loss.isfinite():
                what = f"the loss is {loss.item()}, and {what}"
        harmed = self.non_finite_weight()
        if harmed is None:
            return f"{what}; the update was not applied and the weights are unharmed"
        return f"{what}, and the weight {harmed} is not: an earlier update overflowed it; this update was not applied"

    def non_finite_weight(self) -> str | None:
        """The name of the first weight that is not finite and was finite at the start. Waits for the device."""
        found = non_finite_weights((name, each) for name, each in self._named() if name in self._expected_finite)
        return found[0] if found else None

    def check_weights(self) -> None:
        """Raises NonFinite for a weight that is not finite and was finite at the start. Waits for the device.

        A finite gradient times a rate can overflow a weight. The next step is then refused, but a checkpoint may come
        before it. It reads every weight, so call it where weights are copied anyway.
        """
        name = self.non_finite_weight()
        if name is not None:
            raise NonFinite(
                f"{name} is not finite, although every gradient was: an update has overflowed it",
                where=f"after optimizer step {self.skips.attempted}",
                fix="use a lower learning rate, or clip_norm=1.0; earlier checkpoints are unharmed",
            )

    def _found_unreached(self) -> list[str]:
        found = [name for name, each in self._named() if each.requires_grad and each.grad is None]
        return self._sharding.on_any_stage(found, self._device) if self._sharding.owners else found

    def _named(self) -> Iterator[tuple[str, Tensor]]:
        return zip(self.names, self.parameters, strict=True)

    def abandon_window(self) -> None:
        """Clear gradients and sums: the next microbatch is the first of a window."""
        for parameter in self.parameters:
            parameter.grad = None
        self._is_complete = False
        self.window.begin(self.skips.attempted + 1)

    # ── saving ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def state_dict(self) -> dict[str, Any]:
        """Counters, loss scale and float32 copies; taken between two steps."""
        self.skips.settle()
        return {
            "applied": self.skips.applied,
            "skipped": self.skips.skipped,
            "in_a_row": self.skips.in_a_row,
            "scaler": self.window.scaler.state_dict() if self.window.scaler is not None else None,
            "masters": self._masters.tensors(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.skips.applied, self.skips.skipped, self.skips.in_a_row = (
            state[key] for key in ("applied", "skipped", "in_a_row")
        )
        if self.window.scaler is not None:
            self.window.scaler.load_state_dict(state["scaler"])
        with torch.no_grad():
            for mine, saved in zip(self._masters.tensors(), state["masters"], strict=True):
                mine.copy_(saved)
        self.abandon_window()


def _not_held(parameters: Sequence[Tensor], optimizers: Sequence[Optimizer]) -> list[Tensor]:
    held = {id(each) for optimizer in optimizers for group in optimizer.param_groups for each in group["params"]}
    return [each for each in parameters if id(each) not in held]


def decides_on_device(device: torch.device, optimizers: Sequence[Optimizer]) -> bool:
    """True where every optimizer takes the finite check's answer on an accelerator, so that the host need not wait."""
    fused = all(group.get("fused") for optimizer in optimizers for group in optimizer.param_groups)
    return device.type == "cuda" and fused
