"""Which updates were applied, and which were skipped because a gradient was not finite.

A non-finite value is found on the device, in one pass over all gradients without a host sync. Where the device decides,
its answer is read before the next update: one step late, without a wait.

A skipped step counts as attempted. A refused step ends the run and does not count: the run is then as the step before
left it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from hasten.errors import NonFinite
from hasten.training.state.window_snapshot import StepRollback
from hasten.training.step_parts.torch_ops import find_non_finite, norms

TOO_MANY_IN_A_ROW = 40  # loss scaling halves each time: from 65,536 this is far below any useful scale

Named = Iterable[tuple[str, Tensor]]
_FIX = "look at this step's batch and loss; a lower learning rate or clip_norm=1.0 is the usual remedy"


class Skips:
    """applied and skipped count updates since the run began."""

    def __init__(
        self,
        device: torch.device,
        deferred: bool,
        after_update: Callable[[], None],
        rollback: StepRollback | None = None,
    ) -> None:
        """deferred: whether the device decides. after_update: called once for each applied update. rollback: restores
        what a step has changed before its update was found not to apply."""
        self.deferred = deferred
        self.applied = 0
        self.skipped = 0
        self.in_a_row = 0
        self._after_update, self._rollback = after_update, rollback
        self._answer: Tensor | None = None
        self._why: Callable[[], str] = str  # the reason, if the answer is 1
        self._scaling = False
        self._copied = torch.cuda.Event() if device.type == "cuda" else None

    @property
    def attempted(self) -> int:
        return self.applied + self.skipped + (self._answer is not None)

    def applied_reach(self, wanted: int) -> bool:
        """Whether `wanted` updates were applied; waits for the device only when its last answer decides that."""
        if self._answer is not None and self.applied + 1 >= wanted:
            self.settle()
        return self.applied >= wanted

    def apply(self) -> None:
        self.applied += 1
        self.in_a_row = 0
        self._after_update()

    def skip(self, why: Callable[[], str], *, scaling: bool) -> None:
        """Skip a step. Under loss scaling that is how the scale is found; otherwise, or after too many in a row, the
        step is refused with the reason that `why` gives: NonFinite."""
        step = self.attempted + 1
        if scaling and self.in_a_row + 1 < TOO_MANY_IN_A_ROW:
            self.skipped += 1
            self.in_a_row += 1
            if self._rollback is not None:
                self._rollback.skipped(step)
            return
        what, where = why(), f"optimizer step {step}"
        if self.in_a_row:
            what = f"{what}; this happened {self.in_a_row + 1} times in a row"
            where = f"{where}, after {self.in_a_row} skipped"
        if self._rollback is not None:
            where = f"{where} ({self._rollback.refused(step)})"
        raise NonFinite(what, where=where, fix=_FIX)

    def defer(self, non_finite: Tensor, why: Callable[[], str], *, scaling: bool) -> None:
        """Take the device's answer, 0.0 or 1.0, to be read at the next settle(); and the reason for a 1.0."""
        self._why, self._scaling = why, scaling
        if self._copied is None:
            self._answer = non_finite.clone()  # its owner clears it
            return
        self._answer = torch.empty((), pin_memory=True).copy_(non_finite, non_blocking=True)
        self._copied.record()

    def settle(self) -> None:
        """Act on the last deferred answer, if there is one."""
        if self._answer is None:
            return
        if self._copied is not None:
            self._copied.synchronize()
        answer, self._answer = self._answer.item(), None
        why, self._why = self._why, str
        if answer:
            self.skip(why, scaling=self._scaling)
        else:
            self.apply()


# ── what is not finite ──────────────────────────────────────────────────────────────────────────────────────────────


class FiniteCheck:
    """Whether any gradient holds a NaN or an infinity: a tensor of 0.0 or 1.0 on the device.

    It is the pass of torch.amp.GradScaler with a scale of one: fused over all gradients, on every device, and finite
    values keep their bits. Fused optimizers read its output.
    """

    def __init__(self, parameters: Sequence[Tensor], device: torch.device) -> None:
        self._alike = len({parameter.dtype for parameter in parameters}) == 1  # and, so far, none was sparse
        scalar = {"dtype": torch.float32, "device": device}  # which the pass asks for, whatever the default dtype is
        self._one, self._found = torch.ones((), **scalar), torch.zeros((), **scalar)

    def __call__(self, gradients: list[Tensor]) -> Tensor:
        """The answer to these gradients of the parameters; it is valid until the next call or clear()."""
        if self._alike and gradients:
            try:
                find_non_finite(gradients, self._found, self._one)
                return self._found
            except (
                RuntimeError
            ):  # it refuses sparse and complex gradients; looking for them first would cost a fifth of it
                self._alike = False
        groups: dict[torch.dtype, list[Tensor]] = {}
        for gradient in gradients:
            values = real_values(gradient)
            groups.setdefault(values.dtype, []).append(values)
        for alike in groups.values():
            find_non_finite(alike, self._found, self._one)
        return self._found

    def clear(self) -> None:
        """Reset an answer that was 1, or may have been: a pass never sets it to 0."""
        self._found.zero_()


def real_values(gradient: Tensor) -> Tensor:
    """The gradient itself; the values of a sparse one; the real and imaginary parts of a complex one."""
    values = gradient.coalesce().values() if gradient.is_sparse else gradient
    return torch.view_as_real(values.resolve_conj()) if values.is_complex() else values


def everywhere(scalar: Tensor) -> Tensor:
    """The value over all parts, where ranks hold parts: all ranks call it together. Else the scalar itself."""
    whole: Callable[[], Tensor] | None = getattr(scalar, "full_tensor", None)
    return scalar if whole is None else whole()


def gradient_sizes(parameters: Named) -> list[tuple[str, Tensor]]:
    """The largest magnitude in every parameter's gradient, by name; not finite where one element is not. It stays on
    the device, nothing waits, and the gradients themselves can be released."""
    present = [(name, real_values(parameter.grad)) for name, parameter in parameters if parameter.grad is not None]
    whole = [(name, gradient) for name, gradient in present if gradient.numel()]  # an empty one has no largest element
    if not whole:
        return []
    names, gradients = zip(*whole, strict=True)
    return list(zip(names, norms(gradients, math.inf), strict=True))


def non_finite_sizes(sizes: Sequence[tuple[str, Tensor]]) -> list[str]:
    """The names of those that are not finite, in their order. Waits for the device."""
    if not sizes:
        return []
    finite = everywhere(torch.stack([size.isfinite() for _, size in sizes])).tolist()
    return [name for (name, _), is_finite in zip(sizes, finite, strict=True) if not is_finite]


def non_finite_weights(weights: Named) -> list[str]:
    """The names of those that hold a NaN or an infinity, in their order. Waits for the device.

    A sum is the fastest check of a tensor, and is finite only where every element is. A tensor whose sum overflowed is
    checked element by element.
    """
    tensors = dict(weights)
    suspects = non_finite_sizes([(name, tensor.detach().sum()) for name, tensor in tensors.items()])
    return [name for name in suspects if not tensors[name].isfinite().all()]
