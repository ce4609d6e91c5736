"""The tensor operations of a step: how many, from which line of the user's code, which of them copy or are read.

Counted in a step of its own, which a dispatch mode slows. So only copies, and operations of backward passes, are timed:
each from its start to its end, with a wait for the device on both sides.

A line in a loop counts what it calls in the user's own functions too, and the backward pass of all that: autograd
numbers its nodes in the order in which their operations begin.
"""

from __future__ import annotations

import time
from bisect import bisect
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from inspect import currentframe
from itertools import islice
from threading import get_ident
from types import FrameType
from typing import Any

import torch

from hasten.doctor.profiling import torch_dispatch
from hasten.doctor.profiling.user_lines import Place, function_of, is_users, where
from hasten.measure.stack_sampling import callers

_READS = frozenset({"aten::_local_scalar_dense"})
_READS_OF_A_DEVICE = frozenset({"aten::nonzero"})  # its size is a number
_CONVERSIONS = frozenset({"aten::_to_copy"})
_COPIES = _CONVERSIONS | {"aten::clone", "aten::copy_", "aten::lift_fresh_copy"}
_LAYERS = "/torch/nn/modules/"
_AROUND_MODES = "/torch/_compile.py", "/torch/_dynamo/eval_frame.py"  # by these torch disables its compiler in modes
_DEEPEST = 60  # frames
_AGAIN = 8  # times: what begins less often in one way may be the parts of a single operation

Call = tuple[int, str, int, int]


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
    """Of one line in a loop, with what it calls in the user's code. calls: how often it came to operations, by the
    batch, the operation, the lines and layers that lead there, and the parameter that was last computed with: what is
    beside a layer in a loop over layers is as frequent as that layer. parts: of each call, its operations in all."""

    calls: Counter[Call] = field(default_factory=Counter)
    parts: Counter[Call] = field(default_factory=Counter)
    parameter: int = 0
    last: Call | None = None
    backward_seconds: float = 0.0

    @property
    def operations(self) -> int:
        return self.parts.total()

    @property
    def again(self) -> int:
        return sum(parts for call, parts in self.parts.items() if self.calls[call] >= _AGAIN)

    @property
    def times(self) -> int:
        return max(self.calls.values(), default=0)

    def add(self, call: Call, *, continues: bool) -> None:
        """continues: the call before, as one of its parts."""
        if not continues or self.last is None:
            self.last = call
            self.calls[call] += 1
        self.parts[self.last] += 1


class Operations(torch_dispatch.TorchDispatchMode):
    """Use it around steps. lines: a tally of each; loops: of those in loops; backward: of what backward passes ran.

    autocast: whether steps are computed under it; conversions are then its own, wherever they begin, as they are under
    the user's. settle: waits for the device.
    """

    supports_higher_order_operators = True

    def __init__(self, *, autocast: bool, settle: Callable[[], None] | None = None) -> None:
        super().__init__()
        self._autocast, self._settle = autocast, settle or _do_nothing
        self._autocast_somewhere = autocast
        self._thread = get_ident()  # backward passes on a device have their own
        self._batch = 0
        self._numbers: list[int] = []  # autograd's sequence numbers when operations began,
        self._owners: list[tuple[Place, ...]] = []  # and the loops that each began in
        self._before: tuple[FrameType, int] | None = None  # where the operation before began
        self.lines: dict[Place, Tally] = {}
        self.loops: dict[Place, LoopTally] = {}
        self.elsewhere, self.backward = Tally(), Tally()
        self.backward_seconds = 0.0
        self.names = Counter[str]()

    def next_batch(self) -> None:
        """What follows is of another batch: layers that are called once for each batch are in no loop of the user's."""
        self._batch += 1

    def __exit__(self, *exception: Any) -> None:
        super().__exit__(*exception)
        self._before = None  # its frame holds what a loss has computed

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # No variable may hold this frame: it would keep gradients alive, and autograd then copies them.
        name, caller = torch_dispatch.name_of(func), _caller(currentframe())
        in_backward = torch_dispatch.is_in_backward()
        place, loops = where(callers(caller))
        tally, direct = self._tally(place, caller), _is_direct(caller)
        tally.operations += 1
        tally.direct += direct
        self.names[name] += 1
        self._add_to_loops(name, caller, loops, args)
        copies = name in _COPIES and not (name in _CONVERSIONS and self._is_of_autocast(in_backward=in_backward))
        settle = self._settle if in_backward or copies else _do_nothing
        settle()
        begin = time.perf_counter()
        result = func(*args, **(kwargs or {}))
        settle()
        seconds = time.perf_counter() - begin
        tally.reads += is_read(name, args, result)
        if in_backward:
            self._add_backward(torch_dispatch.sequence_number(), seconds)
        if copies and (tally is self.backward or direct):
            tally.copies += 1
            tally.copying_seconds += seconds
            tally.copied_bytes += result.nbytes if isinstance(result, torch.Tensor) else 0
        return result

    @property
    def total(self) -> int:
        return self.names.total()

    def backward_share(self, place: Place) -> float:
        """Of a line in a loop."""
        seconds = self.loops[place].backward_seconds if place in self.loops else 0.0
        return seconds / self.backward_seconds if self.backward_seconds else 0.0

    def _tally(self, place: Place | None, frame: FrameType) -> Tally:
        if place is not None:  # also of a backward pass that the user's own line starts or defines
            return self.lines.setdefault(place, Tally())
        return self.backward if get_ident() != self._thread or _is_in_backward(frame) else self.elsewhere

    def _add_to_loops(self, name: str, caller: FrameType, loops: tuple[Place, ...], args: Sequence[Any]) -> None:
        continues = self._continues(caller)
        parameter = next((id(each) for each in args if isinstance(each, torch.nn.Parameter)), 0)
        for place, way in _ways(caller, loops):
            loop = self.loops.setdefault(place, LoopTally())
            loop.parameter = parameter or loop.parameter
            loop.add((self._batch, name, way, loop.parameter), continues=continues)
        number = torch_dispatch.next_sequence_number()
        if get_ident() == self._thread and (not self._numbers or number > self._numbers[-1]):
            self._numbers.append(number)
            self._owners.append(loops)

    def _continues(self, caller: FrameType) -> bool:
        """Whether an operation and the one before are parts of one that torch calls once, as a recurrent layer does."""
        before, self._before = self._before, (caller, caller.f_lineno)
        if before is None or is_users(caller.f_code.co_filename):
            return False
        return before[0] is caller and before[1] == caller.f_lineno

    def _add_backward(self, number: int | None, seconds: float) -> None:
        """number: of a node that an operation has made as its last before it began, or after it where it writes in
        place; None where no operation has."""
        self.backward_seconds += seconds
        made = bisect(self._numbers, number + 1) - 1 if number is not None else -1
        for place in self._owners[made] if made >= 0 else ():
            self.loops[place].backward_seconds += seconds

    def _is_of_autocast(self, *, in_backward: bool) -> bool:
        """By how many contexts of autocast are entered: inside of a mode it always reads as disabled."""
        entered = torch.autocast_increment_nesting() > 1
        torch.autocast_decrement_nesting()
        self._autocast_somewhere = self._autocast_somewhere or entered
        return self._autocast_somewhere if in_backward else self._autocast or entered


def _do_nothing() -> None: ...


def least_of(steps: Sequence[Operations]) -> Operations:
    """The first of several equal steps, with the least seconds that its copies took in any of them, and the largest
    share of the backward pass: other processes only make both longer, and shares are upper bounds."""
    first = steps[0]
    for place, tally in first.lines.items():
        tally.copying_seconds = min(each.lines.get(place, tally).copying_seconds for each in steps)
    for place, loop in first.loops.items():
        loop.backward_seconds = max(each.backward_share(place) for each in steps) * first.backward_seconds
    first.backward.copying_seconds = min(each.backward.copying_seconds for each in steps)
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


def _ways(frame: FrameType | None, loops: Sequence[Place]) -> Iterator[tuple[Place, int]]:
    """From each line in a loop to an operation, as a number: lines and layers."""
    way = 0
    for place in loops:
        arrived = False
        while frame is not None and not arrived:
            code = frame.f_code
            layer = id(frame.f_locals["self"]) if code is torch_dispatch.CALL_OF_A_MODULE else 0
            way = hash((way, id(code), frame.f_lineno, layer))
            arrived = frame.f_lineno == place.line and code.co_filename == place.path
            arrived = arrived and function_of(code.co_qualname) == place.function
            frame = frame.f_back
        yield place, way


def _is_direct(frame: FrameType | None) -> bool:
    """Whether the user's code has begun it, and no layer or backward pass that it calls."""
    while frame is not None and not is_users(frame.f_code.co_filename):
        if _LAYERS in frame.f_code.co_filename or frame.f_code.co_name == torch_dispatch.ENGINE:
            return False
        frame = frame.f_back
    return frame is not None


def _is_in_backward(frame: FrameType | None) -> bool:
    stack = islice(callers(frame), _DEEPEST) if frame is not None else ()
    return any(each.f_code.co_name == torch_dispatch.ENGINE for each in stack)
