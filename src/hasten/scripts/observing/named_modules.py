"""Modules by the names that they have in a running function."""

from __future__ import annotations

from collections.abc import Iterator
from types import FrameType

from torch import nn


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


def module_in(frame: FrameType, kind: str, parameters: int) -> nn.Module | None:
    """The named module of this class with so many parameters that are trained."""
    for _, module in modules_named_in(frame):
        if type(module).__name__ == kind and trained_parameters(module) == parameters:
            return module
    return None


def trained_parameters(module: nn.Module) -> int:
    return sum(each.numel() for each in module.parameters() if each.requires_grad)
