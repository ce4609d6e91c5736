"""What schedulers of torch keep in private: their parts, their arguments, their state. Checked on torch 2.9 to 2.13.

Saved values are put into the state of a newly built scheduler, which has the types and the functions: no pickle is
written.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import SequentialLR

from hasten.errors import JobError

_CHANGING = {"last_epoch", "base_lrs"}  # the latter are the optimizer's


def parts(scheduler: Any, length: int | None = None) -> Iterator[tuple[Any, int | None]]:
    """The schedulers that a scheduler is made of, each with the steps it has when the whole has `length`."""
    inner = getattr(scheduler, "_schedulers", None)
    if not inner:
        yield scheduler, length
    elif isinstance(scheduler, SequentialLR):
        starts, ends = [0, *scheduler._milestones], [*scheduler._milestones, length]
        for each, start, end in zip(inner, starts, ends, strict=True):
            yield from parts(each, None if end is None else end - start)
    else:
        for each in inner:
            yield from parts(each, length)


def with_parts(scheduler: Any) -> Iterator[Any]:
    """A scheduler and all that it is made of."""
    yield scheduler
    for each in getattr(scheduler, "_schedulers", ()):
        yield from with_parts(each)


def arguments_in(scheduler: Any) -> dict[str, Any]:
    """What a scheduler was made with, and other values that steps do not change."""
    held = {name: each for name, each in vars(scheduler).items() if name[0] != "_" and name not in _CHANGING}
    if hasattr(scheduler, "_milestones"):
        held["milestones"] = scheduler._milestones
    if hasattr(scheduler, "_schedule_phases"):  # of one-cycle
        held["phases"] = [phase["end_step"] for phase in scheduler._schedule_phases]
        held["anneal"] = scheduler._anneal_func_type
    return held


def expect_scheduler_first(optimizer: Optimizer) -> None:
    """torch warns when a scheduler steps before its optimizer. Here only an epoch or evaluation whose every update was
    skipped can look like that, and is right."""
    optimizer._opt_called = True  # pyright: ignore[reportAttributeAccessIssue]


def storable(scheduler: Any) -> Any:
    """The scheduler's state_dict() as numbers, strings, lists and None; a mapping is a list of its pairs.

    Raises JobError for a state that holds anything else, or for a scheduler without one.
    """
    if not (hasattr(scheduler, "state_dict") and hasattr(scheduler, "load_state_dict")):
        raise _cannot_be_saved(scheduler, "has no state_dict() and load_state_dict()")
    return _plain(scheduler.state_dict(), scheduler)


def restored(saved: Any, scheduler: Any) -> dict[str, Any]:
    """What `storable` gave, for load_state_dict() of a scheduler that was built in the same way."""
    return _like(scheduler.state_dict(), saved)


def _plain(value: Any, scheduler: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # JSON has neither infinity nor NaN
    if isinstance(value, complex):
        return str(math.nan)  # which no step can use either: see group_values.py
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Tensor):
        return value.tolist()
    if isinstance(value, list | tuple):
        return [_plain(each, scheduler) for each in value]
    if isinstance(value, Mapping):
        # A function is code: the newly built scheduler has it.
        return [[key, _plain(each, scheduler)] for key, each in value.items() if not callable(each)]
    raise _cannot_be_saved(scheduler, f"keeps a {type(value).__name__} in its state")


def _like(present: Any, saved: Any) -> Any:
    """The saved value in the type of the present one."""
    if isinstance(present, float) and isinstance(saved, str):
        return float(saved)
    if isinstance(present, Tensor):
        return torch.tensor(saved, dtype=present.dtype, device=present.device)
    if isinstance(present, Mapping):
        values = {key: _like(present.get(key), each) for key, each in saved}
        return Counter(values) if isinstance(present, Counter) else {**present, **values}
    if isinstance(present, list | tuple) and isinstance(saved, list):
        padded = [*present, *[None] * (len(saved) - len(present))]
        return type(present)(_like(mine, each) for mine, each in zip(padded, saved, strict=False))
    return saved


def _cannot_be_saved(scheduler: Any, why: str) -> JobError:
    return JobError(
        "schedule",
        f"{type(scheduler).__name__} {why}, so a run with it cannot be resumed",
        "give it state_dict() and load_state_dict() over plain numbers",
    )
