"""The tensor operations of a step: how many, from which line of the user's code, which of them copy or are read.

Counted in a step of its own, which a dispatch mode slows: what it says of seconds is said of copies alone, each of
which is timed from its start to its end, and those are long enough to be seen at all.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from threading import get_ident
from types import FrameType
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from hasten.doctor.places import Place, is_users, place_of

_READS = frozenset({"aten::_local_scalar_dense"})
_CONVERSIONS = frozenset({"aten::_to_copy"})
_COPIES = _CONVERSIONS | {"aten::clone", "aten::copy_", "aten::lift_fresh_copy"}
_LAYERS = "/torch/nn/modules/"
_BACKWARD = "_engine_run_backward"  # the function of torch.autograd in which all backward passes run
_DEEPEST = 60  # frames


@dataclass(slots=True)
class Tally:
    """Of one line. direct: operations that it begins itself; those of a layer or a backward pass that it calls are not.
    Copies are counted where they are direct."""

    operations: int = 0
    direct: int = 0
    reads: int = 0
    copies: int = 0
    copied_bytes: int = 0
    copying_seconds: float = 0.0


class Operations(TorchDispatchMode):
    """Use it around steps. lines: a tally of each; backward: of what backward passes ran.

    autocast: whether steps are computed under it; conversions are then its own, wherever they begin.
    """

    def __init__(self, *, autocast: bool) -> None:
        super().__init__()
        self._copies = _COPIES - _CONVERSIONS if autocast else _COPIES
        self._thread = get_ident()  # backward passes on a device have their own
        self.lines: dict[Place, Tally] = {}
        self.elsewhere, self.backward = Tally(), Tally()
        self.names = Counter[str]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name
        caller = sys._getframe(1)
        tally = self._tally(caller)
        tally.operations += 1
        self.names[name] += 1
        direct = _is_direct(caller)
        tally.direct += direct
        if name in _READS:
            tally.reads += 1
        if name not in self._copies:
            return func(*args, **(kwargs or {}))
        begin = time.perf_counter()
        result = func(*args, **(kwargs or {}))
        if tally is self.backward or direct:
            tally.copies += 1
            tally.copying_seconds += time.perf_counter() - begin
            if isinstance(result, torch.Tensor):
                tally.copied_bytes += result.nbytes
        return result

    @property
    def total(self) -> int:
        return self.names.total()

    def _tally(self, frame: FrameType) -> Tally:
        place = place_of(frame)
        if place is not None:  # also of a backward pass that the user's own line asks for, or that is of its making
            return self.lines.setdefault(place, Tally())
        return self.backward if get_ident() != self._thread or _is_in_backward(frame) else self.elsewhere


def least_of(steps: Sequence[Operations]) -> Operations:
    """The first of several equal steps, with the least seconds that its copies took in any of them."""
    first = steps[0]
    for place, tally in first.lines.items():
        tally.copying_seconds = min(each.lines.get(place, tally).copying_seconds for each in steps)
    first.backward.copying_seconds = min(each.backward.copying_seconds for each in steps)
    return first


def _is_direct(frame: FrameType | None) -> bool:
    """Whether the user's code has begun it, and no layer or backward pass that it calls."""
    while frame is not None and not is_users(frame.f_code.co_filename):
        if _LAYERS in frame.f_code.co_filename or frame.f_code.co_name == _BACKWARD:
            return False
        frame = frame.f_back
    return frame is not None


def _is_in_backward(frame: FrameType | None) -> bool:
    for _ in range(_DEEPEST):
        if frame is None:
            return False
        if frame.f_code.co_name == _BACKWARD:
            return True
        frame = frame.f_back
    return False
