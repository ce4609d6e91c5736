"""Modules by the names that they have in a running function."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import FrameType
from weakref import ref

from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from hasten.facts.scripts.seen import Call, SeenModel, Stack
from hasten.scripts.observing.calls import call_in


def modules_named_in(frame: FrameType) -> Iterator[tuple[str, nn.Module]]:
    """Its own names first, then those of its file, then the attributes of self."""
    for names in (frame.f_locals, frame.f_globals):
        for name, value in list(names.items()):
            if isinstance(value, nn.Module) and name != "self":
                yield name, value
    owner = frame.f_locals.get("self")
    for name, value in list(getattr(owner, "_modules", {}).items()) + list(getattr(owner, "__dict__", {}).items()):
        if isinstance(value, nn.Module):
            yield f"self.{name}", value
    if isinstance(owner, nn.Module):
        yield "self", owner


def module_in(frames: Iterable[FrameType], model: SeenModel, optimizer: Optimizer) -> nn.Module | None:
    """The named module of the observed class and size. Of several, as a student, its teacher and an average of it, one
    that has parameters of the optimizer; and of two such twins the one with the observed name."""
    held = {id(each) for group in optimizer.param_groups for each in group["params"]}

    def fits(found: tuple[str, nn.Module]) -> tuple[bool, bool]:
        name, module = found
        return any(id(each) in held for each in module.parameters()), name in model.names

    named = [each for frame in frames for each in modules_named_in(frame)]
    inside = [(name, without_wrapper(module)) for name, module in named]
    alike = [each for each in (*named, *inside) if _is_like(each[1], model)]
    return max(alike, key=fits)[1] if alike else None


def _is_like(module: nn.Module, model: SeenModel) -> bool:
    return type(module).__name__ == model.kind and trained_parameters(module) == model.trained


def all_frames() -> Iterator[FrameType]:
    """Of the calling thread, also those of libraries, the innermost first."""
    frame = inspect.currentframe()
    while frame is not None:
        yield frame
        frame = frame.f_back


@dataclass(frozen=True, slots=True)
class NamedModules:
    """Of a running function, at the call that it makes."""

    call: Call
    modules: Sequence[tuple[str, ref[nn.Module]]]

    @classmethod
    def of(cls, frame: FrameType) -> NamedModules:
        return cls(call_in(frame), [(name, ref(each)) for name, each in modules_named_in(frame)])

    def trained(self, called: nn.Module) -> list[tuple[str, nn.Module]]:
        """Names of the module that is trained where this one is called."""
        known = [(name, module) for name, each in self.modules if (module := each()) is not None]
        return within(known, called) or around(known, called)


def trained_module(functions: Sequence[NamedModules], called: nn.Module) -> tuple[nn.Module, tuple[str, ...], Stack]:
    """The module that is trained where this one is called, its names, and the call of the function that has them: the
    innermost one, but of a model that makes its optimizer itself the one that asks it to."""
    found = [(each.call, trained) for each in functions if (trained := each.trained(called))]
    if not found:
        return without_wrapper(called), (), ()
    _, module = found[0][1][0]
    outer = (each for each in found if each[1][0][0] != "self" and each[1][0][1] is module)
    call, named = next(outer, found[0])
    return module, tuple(dict.fromkeys(name for name, _ in named)), (call,)


def is_any_trained(functions: Sequence[NamedModules], optimizer: Optimizer) -> bool:
    """Whether a module that has a name holds a parameter of the optimizer."""
    held = {id(each) for group in optimizer.param_groups for each in group["params"]}
    named = (module for each in functions for _, found in each.modules if (module := found()) is not None)
    return any(id(each) in held for module in named for each in module.parameters())


def within(named: Iterable[tuple[str, nn.Module]], outer: nn.Module) -> list[tuple[str, nn.Module]]:
    """Those that are the outer module, or where there are none, those that a wrapper around them trains alone."""
    known = list(named)
    if own := [(name, each) for name, each in known if each is outer]:
        return own
    inside, trained = set(map(id, outer.modules())), trained_parameters(outer)
    return [(name, each) for name, each in known if id(each) in inside and trained_parameters(each) == trained]


def around(named: Iterable[tuple[str, nn.Module]], inner: nn.Module) -> list[tuple[str, nn.Module]]:
    """The smallest of those that a module is part of: an agent whose actor and critic the script calls."""
    known = [(name, each) for name, each in named if any(inner is part for part in each.modules())]
    least = min((trained_parameters(each) for _, each in known), default=0)
    return [(name, each) for name, each in known if trained_parameters(each) == least]


def without_wrapper(module: nn.Module) -> nn.Module:
    """Of a module that reduces gradients between ranks, the one that it wraps."""
    return without_wrapper(module.module) if isinstance(module, DistributedDataParallel) else module


def wrapper_in(module: nn.Module) -> DistributedDataParallel | None:
    return next((each for each in module.modules() if isinstance(each, DistributedDataParallel)), None)


def trained_parameters(module: nn.Module) -> int:
    return sum(each.numel() for each in module.parameters() if each.requires_grad)
