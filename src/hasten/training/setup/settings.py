"""What a job makes its optimizers, its schedule and its model with, as plain values that a later run can compare.

Only what is told surely: numbers, words and sequences of them, as they are before anything has moved. Two runs of one
job have the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor, nn
from torch.optim import Optimizer

from hasten.parallel.sharding import own_class
from hasten.training.schedule.schedule_checks import parts

if TYPE_CHECKING:
    from hasten.training.schedule.rate_schedule import RateSchedule

_UNTOLD = object()
_LARGEST = 2**63  # no checkpoint can hold every whole number
_COMPUTES = {"params", "param_names", "foreach", "fused"}
_OF_CYCLE = "initial_lr", "max_lr", "min_lr", "max_momentum", "base_momentum"
_MOVED = {"last_epoch", "base_lrs"}  # the latter are the optimizer's


def optimizer_settings(optimizer: Optimizer) -> dict[str, Any]:
    """By name, before it has stepped: one value where all parameter groups have the same, else a list of each group's.
    Not how it computes, nor what a schedule has written beside it."""
    groups = optimizer.param_groups
    found: dict[str, Any] = {}
    for name in dict.fromkeys(name for group in groups for name in group if isinstance(name, str)):
        if name in _COMPUTES or name in _OF_CYCLE:
            continue
        values = [_told(_value_of(name, group)) for group in groups]
        if not any(value is _UNTOLD for value in values):
            found[name] = values[0] if all(value == values[0] for value in values) else values
    return found


def schedule_settings(schedule: RateSchedule) -> dict[str, Any]:
    """By kind and name, before it has moved: what torch's schedulers were made with, but for what a function computes
    and the length. Several of one kind are told apart by their numbers."""
    made = [part for each in schedule._schedulers for part in dict.fromkeys((each, *_parts(each)))]
    held = [(type(each).__name__, _made_with(each)) for each in made if is_library(type(each))]
    if schedule._schedulers:
        groups = [group for optimizer in schedule._optimizers for group in optimizer.param_groups]
        held += [("rates", {name: group.get(name) for name in _OF_CYCLE}) for group in groups if "max_lr" in group]
    met = Counter[str]()
    found: dict[str, Any] = {}
    for kind, values in held:
        met[kind] += 1
        label = kind if met[kind] == 1 else f"{kind} {met[kind]}"
        found |= {f"{label}.{name}": _told(each) for name, each in values.items() if _told(each) is not _UNTOLD}
    return found


def schedule_length(schedule: RateSchedule) -> str:
    """As its state has it, which fits no other length and no other unit."""
    return f"{schedule.unit}s without an end" if schedule._end is None else f"{schedule._end} {schedule.unit}s"


def module_settings(model: nn.Module) -> list[list[Any]]:
    """Of each module its name, its kind and, where the kind is torch's, what it was made with."""
    return [
        [name, own_class(module).__name__, plain_attributes(module) if is_library(own_class(module)) else {}]
        for name, module in model.named_modules()
    ]


def own_attributes(model: nn.Module) -> dict[str, Any]:
    """The numbers that modules of the user's own keep, by their place. They may be anything: a rate, or a clock."""
    return {
        f"{name}.{attribute}" if name else attribute: value
        for name, module in model.named_modules()
        if not is_library(own_class(module))
        for attribute, value in plain_attributes(module).items()
        if not isinstance(value, str)
    }


def plain_attributes(module: nn.Module) -> dict[str, Any]:
    """What a module keeps as numbers, words and tuples of them."""
    held = {name: each for name, each in vars(module).items() if name[0] != "_" and name != "training"}
    return {name: _told(each) for name, each in held.items() if _told(each) is not _UNTOLD}


def is_library(made: Any) -> bool:
    """Whether a class or a function is torch's or hasten's."""
    return str(getattr(made, "__module__", "")).partition(".")[0] in ("torch", "hasten")


def _made_with(scheduler: Any) -> dict[str, Any]:
    held = {name: each for name, each in vars(scheduler).items() if name[0] != "_" and name not in _MOVED}
    if hasattr(scheduler, "_milestones"):
        held["milestones"] = scheduler._milestones
    if hasattr(scheduler, "_schedule_phases"):  # of one-cycle
        held["phases"] = [phase["end_step"] for phase in scheduler._schedule_phases]
        held["anneal"] = scheduler._anneal_func_type
    return held


def _parts(scheduler: Any) -> list[Any]:
    return [part for part, _ in parts(scheduler)]


def _value_of(name: str, group: Mapping[str, Any]) -> Any:
    """A schedule writes its first rate over the optimizer's: beside most the latter is kept, of a cycle it is none."""
    if (name == "lr" and "max_lr" in group) or (name in ("momentum", "betas") and "base_momentum" in group):
        return _UNTOLD
    return group.get("initial_lr", group["lr"]) if name == "lr" else group.get(name, _UNTOLD)


def _told(value: Any) -> Any:
    if isinstance(value, Tensor | np.generic):
        value = value.item() if value.ndim == 0 and not getattr(value, "is_meta", False) else _UNTOLD
    if isinstance(value, Counter):
        value = sorted(value.elements())
    if isinstance(value, list | tuple):
        each_told = [_told(each) for each in value]
        return _UNTOLD if any(each is _UNTOLD for each in each_told) else each_told
    if type(value) is float and value != value:
        return "nan"  # which is never the same as itself
    if type(value) is int and abs(value) >= _LARGEST:
        return _UNTOLD
    return value if value is None or type(value) in (bool, int, float, str) else _UNTOLD
