"""The last forward and backward passes of a script: which module an optimizer trains, and where it is called."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.optim import Optimizer

from hasten.facts.scripts.seen import Call, Stack, Window
from hasten.scripts.observing.calls import call_in, users_frames
from hasten.scripts.observing.named_modules import trained_parameters, without_wrapper
from hasten.scripts.observing.used_outputs import mark, marks_behind
from hasten.scripts.patching import replaced

Framed = tuple[tuple[int, Call], ...]
"""The user's running calls, each with the identity of its frame, the innermost first."""

_KEPT_PASSES = 64  # a step accumulates gradients over fewer


@dataclass(frozen=True, kw_only=True, slots=True)
class Forward:
    """Of an outermost module, with gradients."""

    module: nn.Module
    calls: Framed
    images: tuple[int, ...]
    inputs: tuple[tuple[tuple[int, ...], str], ...]

    @property
    def stack(self) -> Stack:
        return tuple(call for _, call in self.calls)


@dataclass(frozen=True, slots=True)
class _Pass:
    forwards: Sequence[Forward]  # until the backward, at least one
    backward: Framed


@dataclass(frozen=True, slots=True)
class Step:
    """forward: of the module that an optimizer trains. backward: the last one before its update; windows: of all
    backward passes since its first update, each from the first forward before it."""

    forward: Forward
    backward: Framed
    windows: tuple[Window, ...]


@dataclass(slots=True)
class Passes:
    autocast: str = ""  # as in Seen
    _disabled: Counter[str] = field(default_factory=Counter[str])  # entered autocasts that do nothing, by device
    _depth: int = 0
    _begun: list[Forward] = field(default_factory=list[Forward])  # since the last backward
    _passes: deque[_Pass] = field(default_factory=lambda: deque[_Pass](maxlen=_KEPT_PASSES))
    count: int = 0  # of backward passes
    without_modules: int = 0  # backward passes of losses that no call of a trained module led to
    _marked: set[Stack] = field(default_factory=set[Stack])  # calls of modules whose outputs are known
    _used: set[Stack] = field(default_factory=set[Stack])  # those of them that a loss was computed from

    def start(self, resources: ExitStack) -> None:
        """From now on, until the resources are closed."""
        resources.enter_context(replaced(torch.autograd, "backward", self._backward))
        resources.enter_context(replaced(torch.autocast, "__enter__", self._autocast_begins))
        resources.enter_context(replaced(torch.autocast, "__exit__", self._autocast_ends))
        resources.callback(register_module_forward_pre_hook(self._forward_begins).remove)
        resources.callback(register_module_forward_hook(self._forward_ends, always_call=True).remove)

    @property
    def have_begun(self) -> bool:
        """Whether a module was called in training mode, with gradients."""
        return bool(self._begun or self._passes)

    def step_of(self, optimizer: Optimizer, since: int) -> Step | None:
        """That an update ends now. since: the count at the first update: an agent can train its actor in every second
        step. None before a backward.

        Of several modules that have parameters of the optimizer the largest; a generator is not in the last pass where
        a discriminator trains on what it made before.
        """
        owned = {id(each) for group in optimizer.param_groups for each in group["params"]}
        if not self._passes:
            return None
        last = self._passes[-1]
        chosen = self._of_losses(last)
        for each in reversed(self._passes):
            if mine := [forward for forward in self._of_losses(each) if _has_any(forward.module, owned)]:
                chosen = mine
                break
        forward = max(chosen, key=lambda each: trained_parameters(each.module))
        passes = [*self._passes][-max(self.count - since, 1) :]
        windows = [_window(self._of_losses(each), each.backward) for each in passes]
        return Step(forward, last.backward, _longest(windows))

    def _of_losses(self, one: _Pass) -> Sequence[Forward]:
        """Its forwards without those whose outputs no loss needs."""
        used = [each for each in one.forwards if each.stack not in self._marked or each.stack in self._used]
        return used or one.forwards

    def _forward_begins(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        self._depth += 1
        if self._depth == 1 and torch.is_grad_enabled() and without_wrapper(module).training:
            images = tuple(number for number, each in enumerate(args) if _is_image(each))
            inputs = tuple((tuple(each.shape), str(each.dtype)) for each in args if isinstance(each, Tensor))
            self._begun.append(Forward(module=module, calls=_framed(), images=images, inputs=inputs))
            device = next((each.device.type for each in module.parameters()), "")
            if self._disabled[device] and not self.autocast:
                self.autocast = "disabled"
        if torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"):
            self.autocast = "enabled"

    def _forward_ends(self, module: nn.Module, args: Any, result: Any) -> None:
        self._depth -= 1
        if self._depth == 0 and self._begun and self._begun[-1].module is module:
            stack = self._begun[-1].stack
            if mark(result, stack):
                self._marked.add(stack)

    def _autocast_begins(self, original: Callable[..., Any], context: Any) -> Any:
        entered = original(context)
        self._disabled[context.device] += not torch.is_autocast_enabled(context.device)
        return entered

    def _autocast_ends(self, original: Callable[..., Any], context: Any, *exception: Any) -> Any:
        self._disabled[context.device] -= not torch.is_autocast_enabled(context.device)
        return original(context, *exception)

    def _backward(self, original: Callable[..., None], tensors: Any, *args: Any, **named: Any) -> None:
        for loss in [tensors] if isinstance(tensors, Tensor) else tensors:
            self._used |= marks_behind(loss)
        if any(trained_parameters(each.module) for each in self._begun):  # a loss can be a module too
            self._passes.append(_Pass([each for each in self._begun if trained_parameters(each.module)], _framed()))
            self.count += 1
        else:
            self.without_modules += 1
        self._begun.clear()
        original(tensors, *args, **named)


def _has_any(module: nn.Module, owned: set[int]) -> bool:
    return any(id(each) in owned for each in module.parameters())


def _framed() -> Framed:
    return tuple((id(frame), call_in(frame)) for frame in users_frames())


def _window(forwards: Sequence[Forward], backward: Framed) -> Window | None:
    """In the innermost function that runs backward and a forward before it. None where one call does both."""
    for frame, call in backward:
        firsts = [first for each in forwards for own, first in each.calls if own == frame]
        if firsts:
            before = (first for first in firsts if (first.line, first.column) < (call.line, call.column))
            return next((Window(forward=first, backward=call) for first in before), None)
    return None


def _longest(windows: Sequence[Window | None]) -> tuple[Window, ...]:
    """One for each backward; none where one call does forward and backward."""
    found = dict[Call, Window]()
    for each in windows:
        if each is None:
            return ()
        known = found.get(each.backward)
        if known is None or (each.forward.line, each.forward.column) < (known.forward.line, known.forward.column):
            found[each.backward] = each
    return tuple(found.values())


def _is_image(value: Any) -> bool:
    return isinstance(value, Tensor) and value.dim() == 4 and value.is_floating_point()
