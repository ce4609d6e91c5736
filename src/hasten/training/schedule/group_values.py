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

ROUNDING = 1e-12  # so far below 0 a rate is 0: LinearLR(end_factor=0.0) of torch ends at about -1e-19
LARGEST = 1e30  # beyond, what an optimizer computes from it in float32 overflows: Adam divides it by 1 - beta

Fault = Callable[[str, str], HastenError]
"""(what was wrong, what to write) -> the error to raise."""


def is_usable(rate: Any) -> bool:
    """False for what is no real number from 0, or within rounding of it, to LARGEST."""
    if rate.__class__ is float and 0.0 <= rate <= LARGEST:  # as nearly always: the short way
        return True
    if isinstance(rate, Tensor):
        if not rate.is_cpu or rate.numel() != 1:
            return True
        rate = rate.item()
    return rate is None or (isinstance(rate, float | int | Real) and -ROUNDING <= cast("float", rate) <= LARGEST)


def has_usable_rates(optimizer: Optimizer) -> bool:
    return all(is_usable(group.get("lr")) for group in optimizer.param_groups)


def check_rates(optimizer: Optimizer, step: int, fault: Fault) -> None:
    """Raises the fault where a group has no usable rate. step: that would use it, from 1 on."""
    for number, group in enumerate(optimizer.param_groups):
        if is_usable(rate := group.get("lr")):
            continue
        shown = rate.item() if isinstance(rate, Tensor) else rate
        write = f"give step {step} a real number from 0 to {LARGEST:g}"
        if isinstance(shown, complex):
            write += "; a negative base with a fractional exponent is complex: write max(0.0, base) ** exponent"
        owner = f"parameter group {number} of {type(optimizer).__name__}"
        raise fault(f"gives optimizer step {step} the learning rate {shown!r} ({owner})", write)


def as_float(value: Any) -> float:
    """A group's value for logs and checkpoints; NaN for what is no real number."""
    return (
        math.nan if isinstance(value, complex) or (isinstance(value, Tensor) and value.is_complex()) else float(value)
    )


def as_stored(value: Any) -> Any:
    """A group's value as a checkpoint can hold it."""
    if isinstance(value, tuple | list):
        return type(value)(map(as_stored, value))
    return math.nan if isinstance(value, complex) else value
