"""Whether an optimizer can step with the learning rates of its parameter groups.

torch checks them only when an optimizer is built: a rate that is NaN would reach every weight, and a negative one train
upward. Numbers on an accelerator are not checked, because the host would wait for them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from numbers import Real
from typing import Any, cast

from torch import Tensor
from torch.optim import Optimizer

from hasten.errors import HastenError
from hasten.facts.formatting import shortened

ROUNDING = 1e-12  # so far below 0 a rate is 0: LinearLR(end_factor=0.0) of torch ends at about -1e-19
LARGEST = 1e30  # beyond, what an optimizer computes from it in float32 overflows: Adam divides it by 1 - beta

Fault = Callable[[str, str], HastenError]
"""(what was wrong, what to write) -> the error to raise."""


def is_usable(rate: Any) -> bool:
    """False for what is no real number from 0, or within rounding of it, to LARGEST."""
    if rate.__class__ is float and 0.0 <= rate <= LARGEST:  # as nearly always: the short way
        return True
    if isinstance(rate, Tensor):
        if rate.numel() != 1 or not rate.is_cpu:
            return rate.numel() == 1
        rate = rate.item()
    return isinstance(rate, float | int | Real) and -ROUNDING <= cast("float", rate) <= LARGEST


def has_usable_rates(optimizer: Optimizer) -> bool:
    return all(map(_has_usable_rate, optimizer.param_groups))


def _has_usable_rate(group: dict[str, Any]) -> bool:
    """None is for an optimizer that finds its own rate, where no scheduler has replaced a number by it."""
    rate = group.get("lr")
    return is_usable(rate) or (rate is None and group.get("initial_lr") is None)


def check_rates(optimizer: Optimizer, step: int, fault: Fault) -> None:
    """Raises the fault where a group has no usable rate. step: that would use it, from 1 on."""
    for number, group in enumerate(optimizer.param_groups):
        if _has_usable_rate(group):
            continue
        rate = group["lr"]
        shown = rate.item() if isinstance(rate, Tensor) and rate.numel() == 1 else rate
        write = f"give step {step} a real number from 0 to {LARGEST:g}"
        if isinstance(shown, complex):
            write += "; a negative base with a fractional exponent is complex: write max(0.0, base) ** exponent"
        owner = f"parameter group {number} of {type(optimizer).__name__}"
        raise fault(f"gives optimizer step {step} the learning rate {shortened(repr(shown), 60)} ({owner})", write)


def as_float(value: Any) -> float:
    """A group's value for logs and checkpoints; NaN for what is no real number."""
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError):  # the last of a tensor that is complex, or of several numbers
        return math.nan


def as_stored(value: Any) -> Any:
    """A group's value as a checkpoint can hold it."""
    if isinstance(value, tuple | list):
        return type(value)(map(as_stored, value))
    return math.nan if isinstance(value, complex) else value
