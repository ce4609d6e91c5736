"""What a loss function returned, made uniform: a mean with its weight.

One microbatch alone is differentiated through its mean, exactly as a plain loop does. A window of several is
differentiated through totals over one fixed reference count, and divided once at the boundary by the true global count.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from numbers import Real
from typing import Any, cast

import torch
from torch import Tensor, nn

from hasten.errors import RAISED, JobError
from hasten.facts.job import Loss, describe
from hasten.training.failures.user_code import IN_THE_LOSS

Count = Tensor | float
LossFunction = Callable[[nn.Module, Any], Loss | Tensor]


def call_loss(loss: LossFunction, model: nn.Module, batch: Any) -> Loss | Tensor:
    """What the job's loss returns. An exception passes through with a note of where it arose and on what batch."""
    try:
        return loss(model, batch)
    except RAISED as error:
        error.add_note(IN_THE_LOSS + described(batch))
        raise


def calling(
    device: torch.device, autocast: torch.dtype | None
) -> Callable[[LossFunction, nn.Module, Any], Loss | Tensor]:
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
    """The differentiable mean with its weight; 0 for a microbatch that counts nothing, where 0/0 would poison every
    weight."""
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


def checked(returned: Any) -> Loss | Tensor:
    """The first thing a loss function returned, refused in one line when it is no loss. Later ones are not looked at:
    a check of every step would cost what it protects."""
    if isinstance(returned, Tensor):
        _check_scalar("the mean", returned)
        return returned
    if not isinstance(returned, Loss):
        raise JobError("loss", f"returned {describe(returned)}", "return hasten.Loss(total, count), or a scalar mean")
    if not isinstance(returned.total, Tensor):
        raise JobError("loss", f"returned a total that is {describe(returned.total)}", "return a scalar tensor")
    _check_scalar("the total", returned.total)
    check_count(returned.count)
    if returned.auxiliary is not None:
        _check_scalar("the auxiliary term", returned.auxiliary)
    return returned


def check_count(count: Any, step: int | None = None) -> None:
    """Raises JobError for a count that is no number from 0 on. One that lies on an accelerator is not read, as the host
    would wait for it. step: the optimizer step that would use it; None in an evaluation."""
    value = count
    if isinstance(count, Tensor):
        if count.dim() != 0:
            shape = f"shape {tuple(count.shape)}"
            raise JobError("loss", f"returned a count of {shape}{_at(step)}", "sum it: a number or a scalar tensor")
        if type(count) is not Tensor or not count.is_cpu:  # another type may have no number, as in a look at shapes
            return
        value = count.item()
    if not isinstance(value, Real):
        raise JobError("loss", f"returned a count that is {describe(value)}{_at(step)}", _COUNTED)
    if not 0 <= cast("float", value) < math.inf:
        raise JobError("loss", f"returned the count {value}{_at(step)}", _COUNTED)


def _at(step: int | None) -> str:
    return "" if step is None else f" at optimizer step {step}"


_COUNTED = "return hasten.Loss(total, count) with how many items the total sums over: 0 or more"
_SCALAR = {
    "the mean": "reduce it to a scalar: .mean(), or return hasten.Loss(losses.sum(), len(losses))",
    "the total": "sum it to a scalar, and give the number of its items: hasten.Loss(losses.sum(), len(losses))",
    "the auxiliary term": "reduce it to a scalar, the mean over the samples: .mean()",
}


def _check_scalar(what: str, tensor: Tensor) -> None:
    if tensor.dim() != 0:
        raise JobError("loss", f"returned {what} with shape {tuple(tensor.shape)}", _SCALAR[what])
    if torch.is_grad_enabled() and not tensor.requires_grad:
        raise JobError(
            "loss",
            f"returned {what} without a gradient",
            "compute it from the model's output, without .detach(), .item() or torch.no_grad()",
        )
