"""Who holds memory at the peak of an optimizer step: parameters, gradients, optimizer state, activations by module.

A dispatch mode sees every tensor operation of the step, and notes every storage that one makes, with its size and its
end. The peak is where the sum of those alive is highest. Kinds are settled after the step, because a tensor of the
backward pass may become a gradient later:

* parameters, buffers, gradients and optimizer state are those of the model and its optimizers;
* inputs are what the step did not make itself, and what the model is called with;
* an activation was made by a forward pass and is still alive in a backward pass; it belongs to the innermost module
  that made it, recomputed ones included;
* the rest is temporary.

Why not torch's own tracker (torch.distributed._tools.mem_tracker): it is private, refuses a model that is called twice
in a step, and does not attribute activations to modules. Not seen: scratch memory inside one operation, what an
allocator rounds up or caches, sparse tensors, collectives' buffers, memory inside a compiled graph. So the sum is a
lower bound of what the device reports.
"""

from __future__ import annotations

import weakref
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from enum import StrEnum
from itertools import accumulate
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.optim import Optimizer
from torch.utils.module_tracker import ModuleTracker

from hasten.measure.torch_operations import TorchDispatchMode, tensors_in


class Kind(StrEnum):
    PARAMETERS = "parameters"
    BUFFERS = "buffers"
    GRADIENTS = "gradients"
    OPTIMIZER_STATE = "optimizer state"
    ACTIVATIONS = "activations"
    INPUTS = "inputs"
    TEMPORARIES = "temporaries"


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryProfile:
    """Bytes of tensors on one device at the step's peak; `by_kind` names every kind, and its values sum to the peak."""

    peak_bytes: int
    by_kind: Mapping[Kind, int]
    by_module: Mapping[str, int]  # activations at the peak, largest first; "" has those made outside any module


def profile_memory(step: Callable[[], object], model: nn.Module, optimizers: Sequence[Optimizer]) -> MemoryProfile:
    """Profile one whole optimizer step, with all its microbatches, on the device of the model's first parameter.

    `step` runs twice: first unobserved, because an optimizer has no state before its first step. It changes weights,
    state and random numbers as any step does. All hooks are removed, whatever `step` raises.
    """
    step()
    parameters = list(model.parameters())
    observer = _Observer(parameters[0].device, {id(module): name for name, module in model.named_modules()})
    for parameter in parameters:
        observer.enter(parameter, Kind.PARAMETERS)
        observer.enter_gradient(parameter)
    for buffer in model.buffers():
        observer.enter(buffer, Kind.BUFFERS)
    _enter_state(observer, optimizers)
    with ExitStack() as hooks:
        hooks.callback(register_module_forward_pre_hook(observer.enter_module).remove)
        hooks.callback(register_module_forward_hook(observer.leave_module, always_call=True).remove)
        hooks.callback(model.register_forward_pre_hook(observer.take_inputs, with_kwargs=True, prepend=True).remove)
        for parameter in parameters:
            if parameter.requires_grad:
                hooks.callback(parameter.register_post_accumulate_grad_hook(observer.enter_gradient).remove)
        with observer:
            step()
    _enter_state(observer, optimizers)
    return observer.profile()


def _enter_state(observer: _Observer, optimizers: Iterable[Optimizer]) -> None:
    for optimizer in optimizers:
        for tensor in tensors_in([dict(state) for state in optimizer.state.values()]):
            observer.enter(tensor, Kind.OPTIMIZER_STATE)


@dataclass(eq=False, kw_only=True, slots=True)
class _Storage:
    """What is known of a storage. Instants count the operations of the step."""

    bytes: int
    born: int = 0
    died: int | None = None
    in_forward: bool = False
    module: str = ""
    kind: Kind | None = None  # None until the step is over

    def is_alive(self, instant: int) -> bool:
        return self.born <= instant and (self.died is None or self.died >= instant)


class _Observer(TorchDispatchMode):
    """Notes every storage of one device that an operation of the step makes, with the module that runs."""

    def __init__(self, device: torch.device, names: Mapping[int, str]) -> None:
        super().__init__()
        self._device, self._names = device, names
        self._alive: dict[int, tuple[_Storage, weakref.ref[torch.UntypedStorage]]] = {}
        self._all: list[_Storage] = []
        self._now = 0
        self._backward: list[int] = []  # the instants of operations of backward passes
        self._running: list[nn.Module] = []
        self._autograd = ModuleTracker()  # only asked whether a backward pass runs, never entered

    def enter(self, tensor: torch.Tensor, kind: Kind) -> None:
        """A tensor that the step did not make. A known one is not noted twice, but may get its kind."""
        for storage in self._storages(tensor):
            known = self._alive.get(id(storage))
            if known is None:
                self._note(storage, _Storage(bytes=storage.nbytes(), kind=kind))
            elif known[0].kind in (None, Kind.INPUTS) and kind is not Kind.INPUTS:
                known[0].kind = kind

    def enter_gradient(self, parameter: torch.Tensor) -> None:
        if parameter.grad is not None:
            self.enter(parameter.grad, Kind.GRADIENTS)

    def enter_module(self, module: nn.Module, inputs: Any) -> None:
        self._running.append(module)

    def leave_module(self, module: nn.Module, inputs: Any, output: Any) -> None:
        self._running.pop()

    def take_inputs(self, module: nn.Module, inputs: Any, named_inputs: Any) -> None:
        for tensor in tensors_in((inputs, named_inputs)):
            for storage in self._storages(tensor):
                known = self._alive.get(id(storage))
                if known and known[0].kind is None and not known[0].module:
                    known[0].kind = Kind.INPUTS

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(hasattr(kind, "__tensor_flatten__") for kind in types):
            return NotImplemented  # the wrapper's own operations come by as well, on its parts
        for tensor in tensors_in((args, kwargs)):
            self.enter(tensor, Kind.INPUTS)
        self._now += 1
        # Inside a backward pass only a recomputed forward pass builds a graph.
        in_forward = not self._autograd.is_bw or bool(self._running) or torch.is_grad_enabled()
        if not in_forward:
            self._backward.append(self._now)
        result = func(*args, **(kwargs or {}))
        module = self._names.get(id(self._running[-1]), "") if self._running else ""
        for tensor in tensors_in(result):
            for storage in self._storages(tensor):
                if id(storage) not in self._alive:
                    made = _Storage(bytes=storage.nbytes(), born=self._now, in_forward=in_forward, module=module)
                    self._note(storage, made)
        return result

    def profile(self) -> MemoryProfile:
        changes = Counter[int]()
        for each in self._all:
            changes[each.born] += each.bytes
            if each.died is not None:
                changes[each.died + 1] -= each.bytes
        sums = [*accumulate(changes[instant] for instant in range(self._now + 2))]
        peak = max(range(len(sums)), key=sums.__getitem__)
        by_kind, by_module = dict.fromkeys(Kind, 0), Counter[str]()
        for each in self._all:
            if each.is_alive(peak):
                kind = each.kind or self._kind_of(each)
                by_kind[kind] += each.bytes
                if kind is Kind.ACTIVATIONS:
                    by_module[each.module] += each.bytes
        return MemoryProfile(peak_bytes=sums[peak], by_kind=by_kind, by_module=dict(by_module.most_common()))

    def _kind_of(self, storage: _Storage) -> Kind:
        """Of one that the step made."""
        following = bisect_right(self._backward, storage.born)
        is_saved = following < len(self._backward) and storage.is_alive(self._backward[following])
        return Kind.ACTIVATIONS if storage.in_forward and is_saved else Kind.TEMPORARIES

    def _note(self, storage: torch.UntypedStorage, noted: _Storage) -> None:
        key = id(storage)

        def end(_: weakref.ref[torch.UntypedStorage]) -> None:
            noted.died = self._now
            del self._alive[key]

        self._all.append(noted)
        self._alive[key] = (noted, weakref.ref(storage, end))

    def _storages(self, tensor: torch.Tensor) -> Iterator[torch.UntypedStorage]:
        if hasattr(tensor, "__tensor_flatten__"):  # a wrapper, such as DTensor: its parts hold the memory
            for name in tensor.__tensor_flatten__()[0]:  # pyright: ignore[reportAttributeAccessIssue]
                yield from self._storages(getattr(tensor, name))
        elif tensor.layout is torch.strided and tensor.device == self._device:
            yield tensor.untyped_storage()
