"""Random generators of the job's own: what draws beside the three global ones.

A model that draws from a torch.Generator, a numpy Generator or a random.Random which it holds is resumed exactly only
if that generator is. Each is found where modules, the loss and what they close over keep it, and named by its place.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

_OWN = (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)


def generator_states(model: nn.Module, loss: Any) -> dict[str, Any]:
    """The state of each, by its place."""
    return {place: _state(each) for place, each in _found(model, loss)}


def set_generator_states(states: Mapping[str, Any], model: nn.Module, loss: Any) -> None:
    """Go on from what generator_states gave. A place that is not here any more is left out."""
    for place, each in _found(model, loss):
        if place in states:
            _set_state(each, states[place])


def _found(model: nn.Module, loss: Any) -> Iterator[tuple[str, Any]]:
    seen: set[int] = set()
    holders = [(f"model.{name}" if name else "model", vars(module)) for name, module in model.named_modules()]
    for place, held in [*holders, ("loss", _held_by(loss))]:
        for name, value in held.items():
            if isinstance(value, _OWN) and id(value) not in seen:
                seen.add(id(value))
                yield f"{place}.{name}", value


def _held_by(function: Any) -> dict[str, Any]:
    """What a function, a method, a partial or a callable object keeps."""
    if isinstance(function, functools.partial):
        given = {**{str(number): each for number, each in enumerate(function.args)}, **function.keywords}
        return {**_held_by(function.func), **given}
    function = getattr(function, "__wrapped__", function)
    held = dict(getattr(getattr(function, "__self__", None), "__dict__", {}))
    held.update(getattr(function, "__dict__", {}))
    code, cells = getattr(function, "__code__", None), getattr(function, "__closure__", None)
    if code is not None:
        for name in code.co_names:
            if name in function.__globals__:
                held[name] = function.__globals__[name]
        for name, cell in zip(code.co_freevars, cells or (), strict=True):
            try:
                held[name] = cell.cell_contents
            except ValueError:  # it is not filled yet
                continue
    return held


def _state(generator: Any) -> Any:
    if isinstance(generator, torch.Generator):
        return generator.get_state()
    if isinstance(generator, np.random.Generator):
        return generator.bit_generator.state
    if isinstance(generator, np.random.RandomState):
        return generator.get_state(legacy=False)
    return generator.getstate()


def _set_state(generator: Any, state: Any) -> None:
    if isinstance(generator, torch.Generator):
        generator.set_state(state)
    elif isinstance(generator, np.random.Generator):
        generator.bit_generator.state = state
    elif isinstance(generator, np.random.RandomState):
        generator.set_state(state)
    else:
        generator.setstate(state)
