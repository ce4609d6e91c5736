"""The settings of a job's optimizers, schedule and model before the first step, as plain values that a resumed run
compares."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor, nn
from torch.optim import Optimizer

from hasten.parallel.sharding import own_class
from hasten.training.schedule.torch_schedulers import arguments_in, parts

if TYPE_CHECKING:
    from hasten.training.schedule.rate_schedule import RateSchedule

_UNKNOWN = object()
_COMPUTES = {"params", "param_names", "foreach", "fused"}
_OF_CYCLE = "initial_lr", "max_lr", "min_lr", "max_momentum", "base_momentum"


def optimizer_settings(optimizer: Optimizer) -> dict[str, Any]:
    """By name, before the first step: one value where all parameter groups have the same, else a list of each group's.
    Without the implementation, and without what a schedule has added."""
    groups = optimizer.param_groups
    found: dict[str, Any] = {}
    for name in dict.fromkeys(name for group in groups for name in group if isinstance(name, str)):
        if name in _COMPUTES or name in _OF_CYCLE:
            continue
        values = [_plain(_value_of(name, group)) for group in groups]
        if not any(value is _UNKNOWN for value in values):
            found[name] = values[0] if all(value == values[0] for value in values) else values
    return found


def schedule_settings(schedule: RateSchedule) -> dict[str, Any]:
    """By kind and name, before the first step: the arguments of torch's schedulers, without functions and lengths.
    Several of one kind are numbered."""
    made = [part for each in schedule.schedulers for part in dict.fromkeys((each, *(part for part, _ in parts(each))))]
    held = [(type(each).__name__, arguments_in(each)) for each in made if is_library(type(each))]
    if schedule.schedulers:
        groups = [group for optimizer in schedule.optimizers for group in optimizer.param_groups]
        held += [("rates", {name: group.get(name) for name in _OF_CYCLE}) for group in groups if "max_lr" in group]
    met = Counter[str]()
    found: dict[str, Any] = {}
    for kind, values in held:
        met[kind] += 1
        label = kind if met[kind] == 1 else f"{kind} {met[kind]}"
        found |= {f"{label}.{name}": _plain(each) for name, each in values.items() if _plain(each) is not _UNKNOWN}
    return found


def schedule_length(schedule: RateSchedule) -> str:
    """The length that its state fits, with the unit."""
    return f"{schedule.unit}s without an end" if schedule.end is None else f"{schedule.end} {schedule.unit}s"


def module_settings(model: nn.Module) -> list[list[Any]]:
    """Of each module its name, its class and, for torch's classes, its arguments."""
    found = list[list[Any]]()
    for name, module in model.named_modules():
        kind, held = own_class(module), vars(module) if is_library(own_class(module)) else {}
        values = {key: _plain(each) for key, each in held.items() if key[0] != "_" and key != "training"}
        found.append([name, kind.__name__, {key: each for key, each in values.items() if each is not _UNKNOWN}])
    return found


def is_library(made: Any) -> bool:
    """Whether a class or a function is torch's or hasten's."""
    return str(getattr(made, "__module__", "")).partition(".")[0] in ("torch", "hasten")


def _value_of(name: str, group: Mapping[str, Any]) -> Any:
    """A schedule overwrites the optimizer's rate; most store the original, cyclic ones do not."""
    if (name == "lr" and "max_lr" in group) or (name in ("momentum", "betas") and "base_momentum" in group):
        return _UNKNOWN
    return group.get("initial_lr", group["lr"]) if name == "lr" else group.get(name, _UNKNOWN)


def _plain(value: Any) -> Any:
    if isinstance(value, Tensor | np.generic):
        value = value.item() if value.ndim == 0 and not getattr(value, "is_meta", False) else _UNKNOWN
    if isinstance(value, Counter):
        value = sorted(value.elements())
    if isinstance(value, list | tuple):
        plain_items = [_plain(each) for each in value]
        return _UNKNOWN if any(each is _UNKNOWN for each in plain_items) else plain_items
    if type(value) is float and value != value:
        return "nan"  # NaN is not equal to itself
    return value if value is None or type(value) in (bool, int, float, str) else _UNKNOWN
