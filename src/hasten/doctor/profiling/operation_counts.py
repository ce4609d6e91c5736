"""The tensor operations of a step: how many, from which line of the user's code, which of them copy or are read.

Counted in a step of its own, which a dispatch mode slows. So only copies are timed: each from its start to its end,
with a wait for the device on both sides. A line in a loop counts what it calls in the user's own functions too.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from inspect import currentframe
from types import FrameType
from typing import Any

import torch

from hasten.doctor.profiling import torch_dispatch
from hasten.doctor.profiling.user_lines import Place, where
from hasten.measure.stack_sampling import callers
from hasten.users_code import is_users_file

_READS = frozenset({"aten::_local_scalar_dense"})
_READS_OF_A_DEVICE = frozenset({"aten::nonzero"})  # its size is a number
_CONVERSIONS = frozenset({"aten::_to_copy"})
_COPIES = _CONVERSIONS | {"aten::clone", "aten::copy_", "aten::lift_fresh_copy"}
_LAYERS = "/torch/nn/modules/"
_AROUND_MODES = "/torch/_compile.py", "/torch/_dynamo/eval_frame.py"  # by these torch disables its compiler in modes
_AGAIN = 8  # uses of each parameter in a batch: a loop over layers has fewer


@dataclass(slots=True)
class Tally:
    """Of one line. direct: operations that it begins itself, and no layer or backward pass that it calls. Copies are
    counted where they are direct."""

    operations: int = 0
    direct: int = 0
    reads: int = 0
    copies: int = 0
    copied_bytes: int = 0
    copying_seconds: float = 0.0


@dataclass(slots=True)
class LoopTally:
    """Of one line in a loop, with what it calls in the user's code. parameters: how often each is used in a batch."""

    operations: int = 0
    parameters: Counter[tuple[int, int]] = field(default_factory=Counter)

    @property
    def is_over_layers(self) -> bool:
        return self.parameters.total() < _AGAIN * len(self.parameters)


class Operations(torch_dispatch.TorchDispatchMode):
    """Use it around steps. lines: a tally of each; loops: of those in loops; elsewhere: of what no line of the user's
    begins, as most of the backward pass.

    autocast: whether steps are computed under it; conversions are then its own, wherever they begin, as they are under
    the user's. settle: waits for the device.
    """

    supports_higher_order_operators = True

    def __init__(self, *, autocast: bool, settle: Callable[[], None] = lambda: None) -> None:
        super().__init__()
        self._autocast, self._settle = autocast, settle
        self._batch, self.total = 0, 0
        self.lines: dict[Place, Tally] = {}
        self.loops: dict[Place, LoopTally] = {}
        self.elsewhere = Tally()

    def next_batch(self) -> None:
        """What follows is of another batch: layers that are called once for each batch are in no loop of the user's."""
        self._batch += 1

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # No variable may hold this frame: it would keep gradients alive, and autograd then copies them.
        name, caller = torch_dispatch.name_of(func), _caller(currentframe())
        (place, loops), direct = where(callers(caller)), _is_direct(caller)
        tally = self.elsewhere if place is None else self.lines.setdefault(place, Tally())
        self.total += 1
        tally.operations += 1
        tally.direct += direct
        self._add_to_loops(loops, args)
        if direct and name in _COPIES and not (name in _CONVERSIONS and self._is_of_autocast()):
            self._settle()
            begin = time.perf_counter()
            result = func(*args, **(kwargs or {}))
            self._settle()
            tally.copies += 1
            tally.copying_seconds += time.perf_counter() - begin
            tally.copied_bytes += result.nbytes if isinstance(result, torch.Tensor) else 0
        else:
            result = func(*args, **(kwargs or {}))
        tally.reads += is_read(name, args, result)
        return result

    def _add_to_loops(self, loops: Sequence[Place], args: Sequence[Any]) -> None:
        for place in loops:
            loop = self.loops.setdefault(place, LoopTally())
            loop.operations += 1
            loop.parameters.update((self._batch, id(each)) for each in args if isinstance(each, torch.nn.Parameter))

    def _is_of_autocast(self) -> bool:
        """By how many contexts of autocast are entered: inside of a mode it always reads as disabled."""
        entered = torch.autocast_increment_nesting() > 1
        torch.autocast_decrement_nesting()
        return self._autocast or entered


def least_of(steps: Sequence[Operations]) -> Operations:
    """The first of several equal steps, with the least seconds that its copies took in any of them: other processes
    only make them longer."""
    first = steps[0]
    for place, tally in first.lines.items():
        tally.copying_seconds = min(each.lines.get(place, tally).copying_seconds for each in steps)
    return first


def is_read(name: str, args: Sequence[Any], result: Any) -> bool:
    """Whether Python waits for what is computed: a number, or a tensor of a device that is copied to the host."""
    if name in _READS:
        return True
    on_device = any(isinstance(each, torch.Tensor) and each.device.type != "cpu" for each in args)
    on_host = name in _COPIES and isinstance(result, torch.Tensor) and result.device.type == "cpu"
    return on_device and (on_host or name in _READS_OF_A_DEVICE)


def _caller(frame: FrameType | None) -> FrameType:
    """Of the operation that is dispatched to this frame, without torch's own functions around a mode."""
    assert frame is not None
    while frame.f_back is not None:
        frame = frame.f_back
        if not frame.f_code.co_filename.endswith(_AROUND_MODES):
            break
    return frame


def _is_direct(frame: FrameType | None) -> bool:
    """Whether the user's code has begun it, and no layer or backward pass that it calls."""
    while frame is not None and not is_users_file(frame.f_code.co_filename):
        if _LAYERS in frame.f_code.co_filename or frame.f_code.co_name == torch_dispatch.ENGINE:
            return False
        frame = frame.f_back
    return frame is not None
