"""What a loss function returned, made uniform: a mean with its weight; and the losses of all windows, on the device."""

from __future__ import annotations

import math
import traceback
from collections.abc import Callable, Mapping, Sequence
from numbers import Real
from operator import add
from types import MappingProxyType
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from hasten.errors import RAISED, JobError
from hasten.facts.job import Loss, describe
from hasten.facts.ranks import Ranks
from hasten.parallel.collectives import gather_over_ranks, sum_over_ranks
from hasten.training.failures.user_code import IN_THE_JOB
from hasten.users_code import reason_of

Count = Tensor | float
LossFunction = Callable[[nn.Module, Any], Loss | Tensor]


def call_loss(loss: LossFunction, model: nn.Module, batch: Any, field: str = "loss") -> Loss | Tensor:
    """What the job's loss returns. An exception passes through with a note of where it arose and on what batch."""
    try:
        return loss(model, batch)
    except RAISED as error:
        if _took_the_model_for_a_tensor(error, model):
            what = f"was called with the model and a batch, and used the model as a tensor: {reason_of(error)}"
            fix = f"take (model, batch); of a function of prediction and target: {field}=hasten.supervised(function)"
            raise JobError(field, what, fix) from error
        error.add_note(f"{IN_THE_JOB}{field}, on a batch of {described(batch)}")
        raise


def _took_the_model_for_a_tensor(error: BaseException, model: nn.Module) -> bool:
    """False for an error inside the model's forward(), such as a missing layer, and for a model without a device."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    if any(frame.f_locals.get("self") is model and frame.f_code.co_name != "__getattr__" for frame in frames):
        return False
    if isinstance(error, AttributeError):
        return error.obj is model and error.name not in ("device", "dtype") and hasattr(Tensor, error.name or "")
    name = type(model).__name__
    return isinstance(error, TypeError) and (f"'{name}'" in str(error) or f"must be Tensor, not {name}" in str(error))


def calling(device: torch.device, autocast: torch.dtype | None) -> Callable[..., Loss | Tensor]:
    """call_loss, under autocast where that is asked for: over the forward pass and the loss, never a backward pass."""
    return call_loss if autocast is None else torch.autocast(device.type, dtype=autocast)(call_loss)


def described(batch: Any) -> str:
    """Shapes and dtypes of a batch, for an error message."""
    if isinstance(batch, Tensor):
        return f"{str(batch.dtype).removeprefix('torch.')} {list(batch.shape)}"
    if isinstance(batch, Mapping):
        return "{" + ", ".join(f"{key}: {described(value)}" for key, value in batch.items()) + "}"
    if isinstance(batch, tuple | list):
        return "(" + ", ".join(described(item) for item in batch[:4]) + (", …)" if len(batch) > 4 else ")")
    return type(batch).__name__


def mean_and_count(returned: Loss | Tensor, samples: int) -> tuple[Tensor, Count]:
    """The differentiable mean with its weight; 0 for a microbatch that counts nothing, where 0/0 would be NaN."""
    if isinstance(returned, Tensor):
        return returned, samples
    mean = returned.total / never_zero(returned.count)
    return mean if returned.auxiliary is None else mean + returned.auxiliary, returned.count


def total_of(returned: Loss | Tensor, samples: int) -> Tensor:
    """The differentiable sum, without the auxiliary term."""
    return at_least_float32(returned) * samples if isinstance(returned, Tensor) else returned.total


def count_of(returned: Loss | Tensor, samples: int) -> Count:
    if isinstance(returned, Tensor):
        return samples
    return at_least_float32(returned.count) if isinstance(returned.count, Tensor) else returned.count


def at_least_float32(tensor: Tensor) -> Tensor:
    """A sum of 16-bit numbers soon rounds or overflows, where their mean would not."""
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


def never_zero(count: Count) -> Count:
    """The count, or 1 in place of 0, without a host sync."""
    return count + (count == 0) if isinstance(count, Tensor) else count or 1


# ── checks ──────────────────────────────────────────────────────────────────────────────────────────────────────────

_COUNTED = "return hasten.Loss(total, count) with how many items the total sums over: 0 or more"
_SCALAR = {
    "the mean": "reduce it to a scalar: .mean(), or return hasten.Loss(losses.sum(), len(losses))",
    "the total": "sum it to a scalar, and give the number of its items: hasten.Loss(losses.sum(), len(losses))",
    "the auxiliary term": "reduce it to a scalar, the mean over the samples: .mean()",
}


def checked(returned: Any, field: str = "loss", step: int | None = None) -> Loss | Tensor:
    """What a loss function returned. Raises JobError for what is no loss.

    field: of the job, that holds the function. step: the optimizer step that would use it, where it is not the first.
    In training only the first value is checked, and those with which a step has failed: a check in every step would
    cost more than it saves.
    """
    at = "" if step is None else f" at optimizer step {step}"
    if isinstance(returned, Tensor):
        _check_scalar("the mean", returned, field, at)
        return returned
    if not isinstance(returned, Loss):
        fix = "return hasten.Loss(total, count), or a scalar mean"
        raise JobError(field, f"returned {describe(returned)}{at}", fix)
    _check_scalar("the total", returned.total, field, at)
    check_count(returned.count, step, field)
    if returned.auxiliary is not None:
        _check_scalar("the auxiliary term", returned.auxiliary, field, at)
    if returned.parts is not None:
        _check_parts(returned.parts, field, at)
    return returned


def check_count(count: Any, step: int | None = None, field: str = "loss") -> None:
    """Raises JobError for a count that is no number from 0 on. A count on an accelerator is not read, as the host would
    wait for it. step: the optimizer step that would use it; None in an evaluation."""
    at, value = "" if step is None else f" at optimizer step {step}", count
    if isinstance(count, Tensor):
        if count.dim() != 0:
            shape = f"shape {tuple(count.shape)}"
            raise JobError(field, f"returned a count of {shape}{at}", "sum it: a number or a scalar tensor")
        if type(count) is not Tensor or not count.is_cpu:  # a subclass, such as a fake tensor, may have no value
            return
        value = count.item()
    if not isinstance(value, Real):
        raise JobError(field, f"returned a count that is {describe(value)}{at}", _COUNTED)
    if not 0 <= cast("float", value) < math.inf:
        raise JobError(field, f"returned the count {value}{at}", _COUNTED)


def _check_scalar(what: str, tensor: Any, field: str, at: str) -> None:
    if not isinstance(tensor, Tensor):
        raise JobError(field, f"returned {what} as {describe(tensor)}{at}", "return a scalar tensor")
    if tensor.dim() != 0:
        raise JobError(field, f"returned {what} with shape {tuple(tensor.shape)}{at}", _SCALAR[what])
    if tensor.is_complex():
        raise JobError(field, f"returned {what} as a complex number{at}", "return a real one, such as its .abs()")
    if torch.is_grad_enabled() and not tensor.requires_grad:
        fix = "compute it from the model's output, without .detach(), .item() or torch.no_grad()"
        raise JobError(field, f"returned {what} without a gradient{at}", fix)


def _check_parts(parts: Any, field: str, at: str) -> None:
    write = 'return hasten.Loss(total, count, parts={"kl": kl}), a name and a scalar tensor each'
    if not isinstance(parts, Mapping):
        raise JobError(field, f"returned the parts {describe(parts)}{at}", write)
    for name, value in parts.items():
        if not isinstance(name, str) or name == "loss":
            raise JobError(field, f"returned a part with the name {describe(name)}{at}", write)
        if not isinstance(value, Tensor) or value.dim() or value.is_complex():
            what = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) and value.dim() else describe(value)
            raise JobError(field, f"returned the part {name!r} as {what}{at}", write)


# ── the record ──────────────────────────────────────────────────────────────────────────────────────────────────────


Parts = Mapping[str, Tensor | float]
"""Sums of a loss's parts, by their names."""
NO_PARTS: Parts = MappingProxyType({})


class WindowLoss(NamedTuple):
    """The mean loss of one optimizer step's window over all ranks, the number of items that it is the mean of, and the
    means of its parts."""

    mean: float
    items: float
    parts: Mapping[str, float] = MappingProxyType({})  # empty for a loss without parts


class LossRecord:
    """The loss of every window. Reading one number from an accelerator makes the host wait for all work before it, so
    windows append references to tensors, and one read fetches any number of them together."""

    def __init__(self, device: torch.device, ranks: Ranks) -> None:
        self._device, self._ranks = device, ranks
        self._queues = device.type != "cpu"  # on a CPU a result is there when the operation returns
        self._rows: list[tuple[Count, Count, Count, Count]] = []
        self._parts: list[Parts] = []  # of each row

    def append(
        self, mean: Tensor, count: Count, auxiliary: Count = 0.0, samples: Count = 1, parts: Parts = NO_PARTS
    ) -> None:
        """One window on this rank: the mean over `count` items, the auxiliary mean over `samples` samples, and the sums
        of its parts over the items."""
        self._rows.append((mean if self._queues else mean.item(), count, auxiliary, samples))
        self._parts.append(parts)

    def __len__(self) -> int:
        return len(self._rows)

    def drain(self, windows: int | None = None) -> list[WindowLoss]:
        """The oldest windows, all of them by default, with one wait for the device. NaN stays NaN."""
        rows = self._rows[:windows]
        if not rows:
            return []
        means, counts, auxiliary, _ = map(self._numbers, self._columns(rows))
        parts = self._sums_of_parts(self._parts[: len(rows)])
        for each, count in zip(parts, counts, strict=True) if any(parts) else ():
            each.update({name: value / (count or 1.0) for name, value in each.items()})
        # Only now: where the device fails or the wait is interrupted, all stay.
        self._rows, self._parts = self._rows[len(rows) :], self._parts[len(rows) :]
        return list(map(WindowLoss._make, zip(map(add, means, auxiliary), counts, parts, strict=True)))

    def state_dict(self) -> dict[str, Any]:
        """The windows that were not drained yet, over all ranks, as numbers; waits for the device and the ranks."""
        rows = zip(*map(self._numbers, self._columns(self._rows)), strict=True)
        return {"rows": [[*row] for row in rows], "parts": self._sums_of_parts(self._parts)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The leader has what all ranks had; on the others it weighs nothing."""
        weight = 1.0 if self._ranks.leads else 0.0
        self._rows = [
            (mean, count * weight, auxiliary, samples * weight) for mean, count, auxiliary, samples in state["rows"]
        ]
        parts = state.get("parts", [{} for _ in self._rows])
        self._parts = [{name: value * weight for name, value in each.items()} for each in parts]

    def _columns(self, rows: Sequence[tuple[Count, Count, Count, Count]]) -> Sequence[Sequence[Count] | Tensor]:
        """Means, counts, auxiliary means and samples, over all ranks."""
        if not rows or not self._ranks.many:
            return list(zip(*rows, strict=True))
        means, counts, auxiliary, samples = map(self._tensor, zip(*rows, strict=True))
        return *self._over_ranks(means, counts), *self._over_ranks(auxiliary, samples)

    def _sums_of_parts(self, parts: Sequence[Parts]) -> list[dict[str, float]]:
        """Of each window, over all ranks."""
        if not parts:
            return []
        names = [*dict.fromkeys(name for each in parts for name in each)]
        if self._ranks.many:  # their samples may give other parts, or there are none on this rank
            names = [*dict.fromkeys(gather_over_ranks(names, self._ranks, self._device))]
        if not names:
            return [{} for _ in parts]
        sums = torch.stack([self._tensor([each.get(name, 0.0) for name in names]) for each in parts])
        if self._ranks.many:
            sums = sum_over_ranks(sums, self._ranks)
        return [dict(zip(names, row, strict=True)) for row in sums.tolist()]

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


def mean_parts(windows: Sequence[WindowLoss]) -> dict[str, float]:
    """The means of the parts over all items of several windows."""
    items = math.fsum(window.items for window in windows)
    names = dict.fromkeys(name for window in windows for name in window.parts)
    return {
        name: sum(window.parts.get(name, 0.0) * window.items for window in windows) / (items or 1.0) for name in names
    }


def mean_loss(windows: Sequence[WindowLoss]) -> float:
    """The mean over all items of several windows; NaN when no window holds an item, or one of them is NaN."""
    items = math.fsum(window.items for window in windows)
    if not items:
        return math.nan
    # A window without items has the mean 0 and no weight, so only true NaNs come through.
    return sum(window.mean * window.items for window in windows) / items
