"""The tensor operations of a step: how many, from which line of the user's code, which of them copy or are read.

Counted in a step of its own, which a dispatch mode slows: what it says of seconds is said of copies alone, each of
which is timed from its start to its end, and those are long enough to be seen at all.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from hasten.doctor.places import Place, is_users, place_of

_READS = frozenset({"aten::_local_scalar_dense"})
_COPIES = frozenset({"aten::_to_copy", "aten::clone", "aten::copy_", "aten::lift_fresh_copy"})
_BACKWARD = "_engine_run_backward"  # the function of torch.autograd in which all backward passes run
_DEEPEST = 60  # frames


@dataclass(slots=True)
class Tally:
    """Of one line. direct: its own copies, those that code in between made for itself are not."""

    operations: int = 0
    reads: int = 0
    copies: int = 0
    copied_bytes: int = 0
    copying_seconds: float = 0.0


class Operations(TorchDispatchMode):
    """Use it around steps. lines: a tally of each; backward: of what backward passes ran."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: dict[Place, Tally] = {}
        self.elsewhere, self.backward = Tally(), Tally()
        self.names = Counter[str]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name
        caller = sys._getframe(1)
        tally = self._tally(caller)
        tally.operations += 1
        self.names[name] += 1
        if name in _READS:
            tally.reads += 1
        if name not in _COPIES:
            return func(*args, **(kwargs or {}))
        begin = time.perf_counter()
        result = func(*args, **(kwargs or {}))
        if tally is self.backward or is_users(caller.f_code.co_filename):
            tally.copies += 1
            tally.copying_seconds += time.perf_counter() - begin
            if isinstance(result, torch.Tensor):
                tally.copied_bytes += result.nbytes
        return result

    @property
    def total(self) -> int:
        return self.names.total()

    def _tally(self, frame: FrameType) -> Tally:
        if _is_in_backward(frame):
            return self.backward
        place = place_of(frame)
        return self.elsewhere if place is None else self.lines.setdefault(place, Tally())


def _is_in_backward(frame: FrameType | None) -> bool:
    for _ in range(_DEEPEST):
        if frame is None:
            return False
        if frame.f_code.co_name == _BACKWARD:
            return True
        frame = frame.f_back
    return False
