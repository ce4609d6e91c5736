"""Whether an optimizer can step with the rates, momenta and weight decays of its parameter groups.

torch checks them only when an optimizer is built: a rate that is NaN would reach every weight, and a negative one train
upward. Numbers on an accelerator are not checked, because the host would wait for them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from numbers import Real
from typing import Any, cast

from torch import Tensor
from torch.optim import Optimizer

from hasten.errors import HastenError

ROUNDING = 1e-12  # so far below 0 a rate is 0: LinearLR(end_factor=0.0) of torch ends at about -1e-19
LARGEST = 1e30  # beyond, what an optimizer computes from it in float32 overflows: Adam divides it by 1 - beta
_NAMES = {"lr": "learning rate", "momentum": "momentum", "weight_decay": "weight decay", "betas": "beta"}

Fault = Callable[[str, str], HastenError]
"""(what was wrong, what to write) -> the error to raise."""


@dataclass(slots=True)
class ValueCheck:
    """Called before each optimizer step, it takes less than a microsecond for a group."""

    optimizers: Sequence[Optimizer]
    fault: Fault
    _usable: dict[int, Any] = field(default_factory=dict[int, Any])
    """By a group's identity: what it had beside its rate at the last check."""

    def __call__(self, step: int) -> None:
        """Raises the fault where a group has a value that is no real number from 0, or a rate within rounding of it, to
        LARGEST.

        step: the optimizer step that would use them, from 1 on.
        """
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                value = group.get
                rate: Any = value("lr")
                others = value("momentum"), value("weight_decay"), value("betas")
                usable = rate.__class__ is float and 0.0 <= rate <= LARGEST  # as nearly always: the short way
                if (usable or _is_usable(rate, -ROUNDING)) and self._usable.get(id(group)) == others:
                    continue
                self._check(optimizer, group, step)
                self._usable[id(group)] = None if _tensors_in(others) else others  # a tensor may change in place

    def _check(self, optimizer: Optimizer, group: dict[str, Any], step: int) -> None:
        for key in _NAMES:
            value = group.get(key)
            for each in value if isinstance(value, tuple | list) else (value,):
                if not _is_usable(each, -ROUNDING if key == "lr" else 0.0):
                    raise _error(optimizer, group, key, each, step, self.fault)


def has_usable_rates(optimizer: Optimizer) -> bool:
    return all(_is_usable(group.get("lr"), -ROUNDING) for group in optimizer.param_groups)


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


def _is_usable(value: Any, least: float) -> bool:
    if isinstance(value, Tensor):
        if not value.is_cpu or value.numel() != 1:
            return True
        value = value.item()
    return value is None or (isinstance(value, float | int | Real) and least <= cast("float", value) <= LARGEST)


def _tensors_in(values: Iterable[Any]) -> bool:
    return any(_tensors_in(each) if isinstance(each, tuple | list) else isinstance(each, Tensor) for each in values)


def _error(optimizer: Optimizer, group: Any, key: str, value: Any, step: int, fault: Fault) -> HastenError:
    number = next(place for place, each in enumerate(optimizer.param_groups) if each is group)
    shown = value.item() if isinstance(value, Tensor) else value
    owner = f"parameter group {number} of {type(optimizer).__name__}"
    write = f"give step {step} a real number from 0 to {LARGEST:g}"
    if isinstance(shown, complex):
        write += "; a negative base with a fractional exponent is complex: write max(0.0, base) ** exponent"
    return fault(f"gives optimizer step {step} the {_NAMES[key]} {shown!r} ({owner})", write)
