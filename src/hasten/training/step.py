"""One optimizer step, in the only order that is right.

    for each microbatch:   [no sync unless last]  autocast(forward, loss) → scale → backward
    at the boundary:       divide by the count → unscale → finite? → clip → update → scaler → forget gradients
    only if it applied:    schedule · averages · step counter

Every ordering bug that trainers ship is an ordering inside this file, so it is in one place and nowhere else.

Two decisions deserve their reasons. A window of one microbatch on one rank is differentiated through its mean, as a
plain loop does, so that it costs nothing and gives a plain loop's bits; any other window sums totals over a fixed
reference and is divided once by the global count, which is known only at its end. And where every optimizer is fused on
an accelerator, whether the update applied is decided by the device and read by the host one step later, when it is
long known: the host never waits, yet schedule and averages still move on applied updates alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from hasten.errors import JobError
from hasten.facts.job import Loss
from hasten.facts.ranks import ALONE, Ranks
from hasten.parallel.replicate.replicated import Replica
from hasten.techniques.setup import StepOptions
from hasten.training.step_parts import gradients as gradient
from hasten.training.step_parts.backward import backward
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
from hasten.training.step_parts.non_finite import gradient_sizes, non_finite_sizes, non_finite_weights
from hasten.training.step_parts.skips import Aftermath, Skips
from hasten.training.step_parts.summed_loss import is_summed
from hasten.training.step_parts.window_sums import WindowSums, weighed

if TYPE_CHECKING:
    from hasten.parallel.pipeline.pipelined import Pipeline
    from hasten.parallel.pipeline.stage_sharding import Owners
    from hasten.parallel.shard.sharded import Sharded
    from hasten.parallel.tensor.tensor_sharding import Divided


class Step:
    """accumulate(batch, samples, last) for each microbatch; update() after the last one of a window."""

    loss_is_summed = False  # although it is taken for a mean, as far as the first microbatch shows

    def __init__(
        self,
        model: nn.Module,
        loss: LossFunction,
        optimizers: Sequence[Optimizer],
        options: StepOptions | None = None,
        *,
        masters: MasterWeights | None = None,
        ranks: Ranks = ALONE,
        together: Replica | Sharded | None = None,
        divided: Divided | Owners | None = None,
        pipeline: Pipeline | None = None,
        reference: float = 1.0,
        before_update: Callable[[int], None] = lambda step: None,
        after_update: Callable[[], None] = lambda: None,
        after_update_reads_buffers: bool = False,
        aftermath: Aftermath | None = None,
    ) -> None:
        """
        optimizers: together they hold every parameter that is trained; they move all together or not at all.
        together: the loss over all ranks, where it is there already; else every rank holds a replica.
        divided: those of the parameters of which this rank holds a share, or nothing.
        pipeline: of which this rank holds a stage; its loss is then that of the job.
        reference: about how many items a microbatch has, to keep sums of unknown length in range; the result depends on
            it by rounding alone. Change it between two windows.
        before_update: called with each step's number before parameters move, and may refuse the step by raising;
            after_update, once for each update that was applied, before the next one.
        after_update_reads_buffers: it must then come before the next forward pass, which would move batch norm's
            running statistics; the host waits for the device's answer there.
        aftermath: of steps whose update did not apply.
        """
        options = options or StepOptions()
        self.model, self.optimizers = model, list(optimizers)
        self._replica = (together or Replica(loss, model)) if ranks.many and pipeline is None else None
        self._loss, self._options, self._ranks, self.reference = self._replica or loss, options, ranks, reference
        self._alone, self._divided, self._pipeline = not ranks.many, divided, pipeline
        self._masters = MasterWeights(model) if masters is None else masters
        self._device = next(model.parameters()).device
        self._names, trained = zip(*model.named_parameters(), strict=True)
        self._parameters = self._masters.replace(trained)
        self._left_out = _not_held(self._parameters, self.optimizers)
        # A weight may be infinite on purpose, as a mask is, from the start on.
        infinite = set(non_finite_weights(self._named()))
        self._expected_finite = [name for name in self._names if name not in infinite]
        self._norm_tells = (
            options.clip_norm is not None
            and options.clip_value is None
            and options.clip_norm_type in gradient.NORMS_THAT_TELL
        )
        self._forward = self._first_forward
        self._scaler = torch.amp.GradScaler(self._device.type) if options.scale_gradients else None
        self._is_finite = gradient.FiniteCheck(self._parameters, self._device)
        self.skips = Skips(self._device, decides_on_device(self._device, self.optimizers), after_update, aftermath)
        self.losses = LossRecord(self._device, ranks)
        self.gradient_norm: Tensor | None = None  # of the last window, before clipping; None where none was measured
        self.unreached: list[str] | None = None  # parameters without a gradient in the first window, on any rank
        self._before_update, self._settles_first = before_update, after_update_reads_buffers
        self.moving = False  # stays True after an exception that left parameters, or what moves with them, half moved
        self.abandon_window()

    # ── one microbatch ──────────────────────────────────────────────────────────────────────────────────────────────

    def accumulate(self, batch: Any, samples: int, last: bool = True) -> Tensor:
        """Forward and backward of one microbatch of `samples` samples; its mean loss, detached, on the device.

        last: no other microbatch follows before update(). A microbatch of 0 samples weighs nothing; it is there so that
            a rank without data takes part in the reduction. What raises here or in update() leaves no window open.
        """
        if self._closed:
            raise RuntimeError("the window's last microbatch is in: update() comes before the next accumulate()")
        if self._settles_first and self._sums is None:
            self.skips.settle()
        self._closed = last
        try:
            if self._pipeline is not None:
                return self._through_stages(self._pipeline, batch, samples, last)
            if last and samples and self._alone and self._sums is None:
                return self._differentiate_mean(batch, samples)
            with nullcontext() if last or self._replica is None else self._replica.without_sync():
                return self._differentiate_total(batch, samples, last)
        except BaseException:
            self.abandon_window()
            raise

    def _through_stages(self, pipeline: Pipeline, batch: Any, samples: int, last: bool) -> Tensor:
        """The window's mean loss; NaN until its last microbatch is in, as none is computed before."""
        pipeline.add(batch, samples)
        if not last:
            return torch.full((), torch.nan, device=self._device)
        self._sums = WindowSums()
        self._sums.add(*pipeline.run(lambda total: self._scaled(total / self.reference)))
        return self._sums.mean

    def _first_forward(self, batch: Any) -> Loss | Tensor:
        forward = partial(calling(self._device, self._options.autocast), self._loss, self.model)
        returned = checked(forward(batch))
        self.loss_is_summed = is_summed(returned, batch)
        self._forward = forward
        return returned

    def _returned(self, batch: Any) -> Loss | Tensor:
        returned = self._forward(batch)
        if isinstance(returned, Loss):
            check_count(returned.count, self.skips.attempted + 1)
        return returned

    def _differentiate_mean(self, batch: Any, samples: int) -> Tensor:
        returned = self._returned(batch)
        mean, count = mean_and_count(returned, samples)
        backward(mean if self._scaler is None else self._scaler.scale(mean))
        mean = mean.detach()
        self._only = mean, count
        return mean

    def _differentiate_total(self, batch: Any, samples: int, last: bool) -> Tensor:
        returned = self._returned(batch)
        sums = self._sums or WindowSums()
        total, count = weighed(returned, samples)
        if isinstance(returned, Loss) and returned.auxiliary is not None:
            self._differentiate_auxiliary(returned.auxiliary, samples, sums)
        if last:
            sums.announce(count, self._ranks, self._device)
        backward(self._scaled(total / self.reference))
        sums.add(total, count, samples)
        self._sums = sums
        return total.detach() / never_zero(count)

    def _differentiate_auxiliary(self, auxiliary: Tensor, samples: int, sums: WindowSums) -> None:
        scaled = self._scaled(auxiliary.float() * samples)
        parameters = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        parts = torch.autograd.grad(scaled, parameters, retain_graph=True, allow_unused=True)
        sums.add_auxiliary(auxiliary, samples, self._masters.replace(parameters), parts)

    def _scaled(self, objective: Tensor) -> Tensor:
        return objective if self._scaler is None else self._scaler.scale(objective)

    # ── the boundary ────────────────────────────────────────────────────────────────────────────────────────────────

    def update(self) -> None:
        """Apply the window's gradients, unless one of them is not finite: then nothing moves.

        Raises NonFinite for a skip that is not part of finding a loss scale; the weights are then unharmed.
        """
        if self._only is None and self._sums is None:
            raise RuntimeError("update() was called before any accumulate()")
        self.gradient_norm = None
        try:
            if self.skips.deferred:
                self.skips.settle()
            if self._sums is not None:  # a window of one is a mean already
                self._sums.divide_gradients(self._parameters, self.reference, self._ranks, self._device)
            if self._divided is not None:
                self._divided.complete((name, each) for name, each in self._named() if each.requires_grad)
            if self._scaler is not None:
                self._unscale(self._scaler)
            gradients = gradient.present(self._parameters)
            if not gradients and self._pipeline is None:  # the blocks of a stage may be frozen
                raise JobError("loss", "reaches no parameter of the model", "compute it from the model it is given")
            if self.unreached is None:
                self.unreached = self._found_unreached()
            self._move(gradients, self._overflow(gradients) if self._norm_tells else self._non_finite(gradients))
            if self._scaler is not None:
                self._scaler.update()
            self._record()  # what fails before may be taken again, and is one window
            self.moving = False
        except BaseException:
            self._is_finite.clear()
            if self._scaler is not None:  # else it would refuse to unscale the next window
                self._scaler._per_optimizer_states.clear()
            raise
        finally:
            self.abandon_window()

    def _record(self) -> None:
        only, sums = self._only, self._sums
        if only is not None:
            self.losses.append(*only)
        elif sums is not None:
            self.losses.append(sums.mean, sums.count, sums.auxiliary_mean, sums.samples)

    def _unscale(self, scaler: torch.amp.GradScaler) -> None:
        for optimizer in self.optimizers:
            scaler.unscale_(optimizer)
        if self._left_out:  # what no optimizer holds counts in a norm as well
            scale = scaler.scale(torch.ones((), device=self._device))
            gradient.multiply(gradient.present(self._left_out), 1 / scale)

    def _non_finite(self, gradients: list[Tensor]) -> Tensor:
        found = self._is_finite(gradients)
        return found if self._divided is None else self._divided.anywhere(found)

    def _overflow(self, gradients: list[Tensor]) -> Tensor:
        """Measure the norm: 1.0 where it is not finite. It reads every gradient, so it tells what the finite check
        does; and it can overflow where each is finite: clipping by it would then move nothing but the momentum."""
        kind = self._options.clip_norm_type
        if self._divided is None:
            self.gradient_norm = gradient.norm(gradients, kind)
        else:
            named = dict(self._named_gradients())
            self.gradient_norm = self._divided.norm(named, lambda some: gradient.norm(some, kind), kind)
        return (~self.gradient_norm.isfinite()).float()

    def _move(self, gradients: list[Tensor], non_finite: Tensor) -> None:
        """Clip, by value and then by norm, and let the optimizers move; nothing moves where something is not finite."""
        options, scaling = self._options, self._scaler is not None
        # Until one update has applied the host decides: a fused optimizer that skips its first one makes its state and
        # leaves it unwritten.
        on_device = self.skips.deferred and self.skips.applied > 0
        if not on_device and non_finite.item():
            self._skip()
            return
        # The answer comes when the gradients are gone. Under loss scaling, nobody asks which it was of a first skip.
        sizes = gradient_sizes(self._named()) if on_device and (self.skips.in_a_row or not scaling) else []
        if options.clip_value is not None:
            gradient.clip_value(self._parameters, gradients, options.clip_value)
        if options.clip_norm is not None:
            if not self._norm_tells:
                overflow = self._overflow(gradients)
                if not on_device and overflow.item():
                    self._skip()
                    return
                non_finite = torch.maximum(non_finite, overflow)
            assert self.gradient_norm is not None  # measured here, or before it was judged
            gradient.clip_norm(self._parameters, options.clip_norm, self.gradient_norm)
        self._before_update(self.skips.attempted + 1)
        self.moving = True
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
        # No loss scale brings a norm down that overflows: gradients are unscaled before they are measured.
        sizes = gradient_sizes(self._named())
        scaling = self._scaler is not None and bool(non_finite_sizes(sizes))
        self.skips.skip(partial(self._why, sizes), scaling=scaling)

    def _why(self, sizes: list[tuple[str, Tensor]]) -> str:
        """Of an update that did not apply, by the sizes of its gradients: what was not finite, and what that harmed."""
        found = non_finite_sizes(sizes)
        what = "the norm of the gradients is not finite, although every gradient is"
        if found:
            what = f"a gradient of {found[0]} is not finite"
        harmed = self.harmed_weight()
        if harmed is None:
            return f"{what}; the update was not applied and the weights are unharmed"
        return f"{what}, and {harmed} was not before: an update by finite gradients overflowed it; this one is left out"

    def harmed_weight(self) -> str | None:
        """The name of the first weight that is not finite and was, when this began. Waits for the device."""
        found = non_finite_weights((name, each) for name, each in self._named() if name in self._expected_finite)
        return found[0] if found else None

    def _found_unreached(self) -> list[str]:
        found = [name for name, each in self._named() if each.requires_grad and each.grad is None]
        return found if self._pipeline is None else self._pipeline.unreached(found)

    def _named(self) -> Iterator[tuple[str, Tensor]]:
        return zip(self._names, self._parameters, strict=True)

    def _named_gradients(self) -> Iterator[tuple[str, Tensor]]:
        return ((name, each.grad) for name, each in self._named() if each.grad is not None)

    def abandon_window(self) -> None:
        """Forget gradients and sums: the next microbatch is the first of a window."""
        for parameter in self._parameters:
            parameter.grad = None
        if self._pipeline is not None:
            self._pipeline.forget()
        self._closed = False  # the last microbatch is not in
        self._only: tuple[Tensor, Count] | None = None  # mean and count of a window's one microbatch
        self._sums: WindowSums | None = None  # of a window of several, from its first on

    # ── carrying on ─────────────────────────────────────────────────────────────────────────────────────────────────

    def state_dict(self) -> dict[str, Any]:
        """Counters, loss scale and float32 copies; taken between two steps."""
        self.skips.settle()
        return {
            "applied": self.skips.applied,
            "skipped": self.skips.skipped,
            "in_a_row": self.skips.in_a_row,
            "scaler": self._scaler.state_dict() if self._scaler is not None else None,
            "masters": self._masters.tensors(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.skips.applied, self.skips.skipped, self.skips.in_a_row = (
            state[key] for key in ("applied", "skipped", "in_a_row")
        )
        if self._scaler is not None:
            self._scaler.load_state_dict(state["scaler"])
        with torch.no_grad():
            for mine, saved in zip(self._masters.tensors(), state["masters"], strict=True):
                mine.copy_(saved)


def _not_held(parameters: Sequence[Tensor], optimizers: Sequence[Optimizer]) -> list[Tensor]:
    held = {id(each) for optimizer in optimizers for group in optimizer.param_groups for each in group["params"]}
    return [each for each in parameters if id(each) not in held]


def decides_on_device(device: torch.device, optimizers: Sequence[Optimizer]) -> bool:
    """True where every optimizer takes the finite check's answer on an accelerator, so that the host need not wait."""
    fused = all(group.get("fused") for optimizer in optimizers for group in optimizer.param_groups)
    return device.type == "cuda" and fused
