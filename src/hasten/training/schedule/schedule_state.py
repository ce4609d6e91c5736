"""A scheduler's state as JSON can hold it, and back into the types that the scheduler works with.

torch's schedulers keep counters with whole numbers as keys, tuples, tensors and functions beside plain numbers, and
expect them back from a pickle. No pickle is written here. A newly built scheduler knows the types, and has the
functions, so the saved values are poured into its own state."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from hasten.errors import JobError


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
        return str(value)  # JSON knows neither infinity nor NaN
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
