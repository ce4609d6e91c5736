"""Who holds memory at the peak of an optimizer step: parameters, gradients, optimizer state, activations by module.

A dispatch mode sees every tensor operation of the step. A ledger has every storage that an operation makes, with its
size, and its end; the peak is where the running sum is highest, and what is alive there is its breakdown. Kinds are
settled after the step, because a tensor of the backward pass may become a gradient later:

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
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.optim import Optimizer
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.module_tracker import ModuleTracker

from hasten.errors import InvalidMeasurement


class Kind(StrEnum):
    PARAMETERS = "parameters"
    BUFFERS = "buffers"
    GRADIENTS = "gradients"
    OPTIMIZER_STATE = "optimizer state"
    ACTIVATIONS = "activations"
    INPUTS = "inputs"
    TEMPORARIES = "temporaries"


@dataclass(frozen=True, kw_only=True, slots=True)
class ModuleActivations:
    module: str  # as in model.named_modules(); "" for what was made outside any of them, such as the loss
    bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryProfile:
    """Bytes of tensors on one device at the step's peak; `by_kind` names every kind, and its values sum to the peak."""

    device: str
    peak_bytes: int
    by_kind: Mapping[Kind, int]
    by_module: tuple[ModuleActivations, ...]  # activations at the peak, largest first


def profile_memory(
    step: Callable[[], object], model: nn.Module, optimizers: Optimizer | Sequence[Optimizer]
) -> MemoryProfile:
    """Profile one whole optimizer step, with all its microbatches, on the device of the model's first parameter.

    `step` runs twice: first unobserved, because an optimizer has no state before its first step. It changes weights,
    state and random numbers as any step does. All hooks are removed, whatever `step` raises. Raises InvalidMeasurement
    for a model without parameters.
    """
    every = [optimizers] if isinstance(optimizers, Optimizer) else list(optimizers)
    step()
    parameters = _parameters(model, every)
    ledger = _Ledger(parameters[0].device)
    _enter_what_exists(ledger, model, parameters)
    _enter_state(ledger, every)
    observer = _Observer(ledger, {id(module): name for name, module in model.named_modules()})
    with ExitStack() as hooks:
        hooks.callback(register_module_forward_pre_hook(observer.enter_module).remove)
        hooks.callback(register_module_forward_hook(observer.leave_module, always_call=True).remove)
        hooks.callback(model.register_forward_pre_hook(observer.take_inputs, with_kwargs=True, prepend=True).remove)
        for parameter in parameters:
            if parameter.requires_grad:
                hooks.callback(parameter.register_post_accumulate_grad_hook(ledger.enter_gradient).remove)
        with observer:
            step()
    _enter_state(ledger, every)
    return ledger.profile()


@dataclass(eq=False, kw_only=True, slots=True)
class _Holding:
    """One storage's line in the ledger. Instants are positions in the ledger's list of changes."""

    bytes: int
    born: int
    in_forward: bool = False
    module: str = ""
    kind: Kind | None = None  # None until the step is over
    died: int | None = None


class _Ledger:
    """Every storage of one device: when it came, how large it is, when it went."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._alive: dict[int, tuple[_Holding, weakref.ref[torch.UntypedStorage]]] = {}
        self._from_before: list[tuple[_Holding, int]] = []
        self._changes: list[tuple[_Holding, int]] = []
        self._backward_at: list[int] = []

    def enter_from_before(self, tensor: torch.Tensor, kind: Kind) -> None:
        """Enter what the step did not make. What is known is not entered twice, but may get its kind."""
        for storage in self._storages(tensor):
            known = self._alive.get(id(storage))
            if known is None:
                holding = self._enter(storage, _Holding(bytes=storage.nbytes(), born=0, kind=kind))
                self._from_before.append((holding, holding.bytes))
            elif known[0].kind in (None, Kind.INPUTS) and kind is not Kind.INPUTS:
                known[0].kind = kind

    def enter_made(self, tensor: torch.Tensor, *, in_forward: bool, module: str) -> None:
        """Enter the result of an operation, or the new size of a storage that was resized."""
        for storage in self._storages(tensor):
            known = self._alive.get(id(storage))
            holding = (
                known[0] if known else _Holding(bytes=0, born=len(self._changes), in_forward=in_forward, module=module)
            )
            if known is None:
                self._enter(storage, holding)
            if storage.nbytes() != holding.bytes:
                self._changes.append((holding, storage.nbytes() - holding.bytes))
                holding.bytes = storage.nbytes()

    def enter_gradient(self, parameter: torch.Tensor) -> None:
        if parameter.grad is not None:
            self.enter_from_before(parameter.grad, Kind.GRADIENTS)

    def enter_input(self, tensor: torch.Tensor) -> None:
        for storage in self._storages(tensor):
            known = self._alive.get(id(storage))
            if known and known[0].kind is None and not known[0].module:
                known[0].kind = Kind.INPUTS

    def note_backward(self) -> None:
        """What a forward pass made and is still alive now is kept for the backward pass."""
        if not self._backward_at or self._backward_at[-1] != len(self._changes):
            self._backward_at.append(len(self._changes))

    def profile(self) -> MemoryProfile:
        peak_bytes, held = _at_peak([*self._from_before, *self._changes])
        by_kind = Counter[Kind]()
        by_module = Counter[str]()
        for holding, size in held.items():
            kind = self._kind_of(holding)
            by_kind[kind] += size
            if kind is Kind.ACTIVATIONS and size:
                by_module[holding.module] += size
        return MemoryProfile(
            device=str(self.device),
            peak_bytes=peak_bytes,
            by_kind={kind: by_kind[kind] for kind in Kind},
            by_module=tuple(ModuleActivations(module=name, bytes=size) for name, size in by_module.most_common()),
        )

    def _kind_of(self, holding: _Holding) -> Kind:
        if holding.kind is not None:
            return holding.kind
        following = bisect_right(self._backward_at, holding.born)
        reached = following < len(self._backward_at) and (
            holding.died is None or holding.died >= self._backward_at[following]
        )
        return Kind.ACTIVATIONS if holding.in_forward and reached else Kind.TEMPORARIES

    def _enter(self, storage: torch.UntypedStorage, holding: _Holding) -> _Holding:
        key = id(storage)

        def strike_out(_: weakref.ref[torch.UntypedStorage]) -> None:
            holding.died = len(self._changes)
            self._changes.append((holding, -holding.bytes))
            del self._alive[key]

        self._alive[key] = (holding, weakref.ref(storage, strike_out))
        return holding

    def _storages(self, tensor: torch.Tensor) -> Iterator[torch.UntypedStorage]:
        if hasattr(tensor, "__tensor_flatten__"):  # a wrapper, such as DTensor: its parts hold the memory
            for name in tensor.__tensor_flatten__()[0]:  # pyright: ignore[reportAttributeAccessIssue]
                yield from self._storages(getattr(tensor, name))
        elif tensor.layout is torch.strided and tensor.device == self.device:
            yield tensor.untyped_storage()


class _Observer(TorchDispatchMode):
    """Writes every operation of the step into the ledger, with the module that runs it."""

    def __init__(self, ledger: _Ledger, names: Mapping[int, str]) -> None:
        super().__init__()
        self._ledger = ledger
        self._names = names
        self._running: list[nn.Module] = []
        self._autograd = ModuleTracker()  # only asked whether a backward pass runs, never entered

    def enter_module(self, module: nn.Module, inputs: Any) -> None:
        self._running.append(module)

    def leave_module(self, module: nn.Module, inputs: Any, output: Any) -> None:
        self._running.pop()

    def take_inputs(self, module: nn.Module, inputs: Any, named_inputs: Any) -> None:
        for tensor in _tensors((inputs, named_inputs)):
            self._ledger.enter_input(tensor)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(hasattr(kind, "__tensor_flatten__") for kind in types):
            return NotImplemented  # the wrapper's own operations come by as well, on its parts
        for tensor in _tensors((args, kwargs)):
            self._ledger.enter_from_before(tensor, Kind.INPUTS)
        # Inside a backward pass only a recomputed forward pass builds a graph.
        in_forward = not self._autograd.is_bw or bool(self._running) or torch.is_grad_enabled()
        if not in_forward:
            self._ledger.note_backward()
        result = func(*args, **(kwargs or {}))
        module = self._names.get(id(self._running[-1]), "") if self._running else ""
        for tensor in _tensors(result):
            self._ledger.enter_made(tensor, in_forward=in_forward, module=module)
        return result


def _at_peak(changes: Iterable[tuple[_Holding, int]]) -> tuple[int, dict[_Holding, int]]:
    """The highest sum that the changes reach, and what each holding had then."""
    listed = list(changes)
    total, peak_bytes, peak_at = 0, 0, 0
    for position, (_, delta) in enumerate(listed):
        total += delta
        if total > peak_bytes:
            peak_bytes, peak_at = total, position
    held = dict[_Holding, int]()
    for holding, delta in listed[: peak_at + 1]:
        held[holding] = held.get(holding, 0) + delta
    return peak_bytes, held


def _enter_what_exists(ledger: _Ledger, model: nn.Module, parameters: Iterable[nn.Parameter]) -> None:
    for parameter in parameters:
        ledger.enter_from_before(parameter, Kind.PARAMETERS)
        ledger.enter_gradient(parameter)
    for buffer in model.buffers():
        ledger.enter_from_before(buffer, Kind.BUFFERS)


def _enter_state(ledger: _Ledger, optimizers: Iterable[Optimizer]) -> None:
    for optimizer in optimizers:
        for tensor in _tensors([dict(state) for state in optimizer.state.values()]):
            ledger.enter_from_before(tensor, Kind.OPTIMIZER_STATE)


def _parameters(model: nn.Module, optimizers: Iterable[Optimizer]) -> list[nn.Parameter]:
    """Those of the model, then those that only an optimizer knows."""
    every = {id(parameter): parameter for parameter in model.parameters()}
    for optimizer in optimizers:
        every |= {id(parameter): parameter for group in optimizer.param_groups for parameter in group["params"]}
    if not every:
        raise InvalidMeasurement(
            "the model has no parameter, so no step of it can be profiled", fix="give a model to train"
        )
    return list(every.values())


def _tensors(tree: Any) -> Iterator[torch.Tensor]:
    return (leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor))
