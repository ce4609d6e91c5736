"""State that the loss changes and the job does not declare, found in the first steps.

No checkpoint would hold it, so a resumed run would train something else. The search is one level deep: what the loss
closes over, its defaults, its attributes, the globals of its file that it uses, and generators that layers of the model
hold. State in deeper places is not found; the documentation of Job.state says so.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from functools import partial
from types import FunctionType, MethodType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from hasten.data.order.randomness import generator_state, is_generator
from hasten.errors import JobError
from hasten.facts.job import Job
from hasten.training.state.declared_state import DeclaredState, is_stateful

STEPS = 2  # a loss may build its state in the first step, and change it from the second on


class _Candidate(NamedTuple):
    name: str
    value: Any
    before: Any


class UndeclaredState:
    """Made before the first step; `check` after each step, until `is_done`."""

    def __init__(self, job: Job, model: nn.Module, declared: DeclaredState, device: torch.device) -> None:
        known = {id(part) for part in declared.parts.values()} | {id(model)}
        for module in (model, *declared.modules):
            known |= {id(each) for each in (*module.modules(), *module.parameters(), *module.buffers())}
        held = [*_held_by(job.loss, device), *_generators_of(model)]
        self._candidates = [
            _Candidate(name, value, _fingerprint(value))
            for name, value in held
            if id(value) not in known and _has_state(value)
        ]
        self._steps_left = STEPS if self._candidates else 0

    @property
    def is_done(self) -> bool:
        return not self._steps_left

    def check(self) -> None:
        """Raises JobError for state that has changed."""
        self._steps_left -= 1
        changed = [each.name for each in self._candidates if _fingerprint(each.value) != each.before]
        if not changed:
            return
        keys = ", ".join(f'"{name.rpartition(".")[2]}": …' for name in changed)
        raise JobError(
            "state",
            f"does not declare {', '.join(changed)}, which a training step changes, and no checkpoint would hold it",
            f"declare it in the job: state={{{keys}}}",
        )


def _held_by(loss: Any, device: torch.device) -> Iterator[tuple[str, Any]]:
    """What a loss function holds, with the name that it has there."""
    if isinstance(loss, partial):
        yield from _held_by(loss.func, device)
        yield from ((f"argument {number}", each) for number, each in enumerate(loss.args))
        yield from loss.keywords.items()
    elif isinstance(loss, MethodType):
        yield from _held_by(loss.__func__, device)
        yield from _attributes(loss.__self__)
    elif isinstance(loss, FunctionType):
        if (loss_on := getattr(loss, "loss_on", None)) is not None:  # of hasten.supervised
            given = loss_on(device)
            yield type(given).__name__, given
            yield from _held_by(given, device)
            return
        yield from _variables_of(loss)
        parameters = inspect.signature(loss).parameters.values()
        yield from ((each.name, each.default) for each in parameters if each.default is not each.empty)
    elif not isinstance(loss, type):
        yield from _attributes(loss)
        call = vars(type(loss)).get("__call__")
        if isinstance(call, FunctionType):
            yield from _variables_of(call)


def _variables_of(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """Of its closure, and the globals that it names."""
    try:
        used = inspect.getclosurevars(function)
    except ValueError:  # a variable of the closure has no value yet
        return
    yield from {**used.nonlocals, **used.globals}.items()


def _attributes(value: Any) -> Iterator[tuple[str, Any]]:
    kind = type(value).__name__
    if isinstance(value, nn.Module):
        yield from ((f"{kind}.{name}", each) for name, each in value.named_children())
    yield from ((f"{kind}.{name}", each) for name, each in getattr(value, "__dict__", {}).items())


def _generators_of(model: nn.Module) -> Iterator[tuple[str, Any]]:
    for path, module in model.named_modules():
        for name, each in vars(module).items():
            if is_generator(each):
                yield f"model.{path}.{name}" if path else f"model.{name}", each


def _has_state(value: Any) -> bool:
    if isinstance(value, type):
        return False
    return isinstance(value, Tensor) or is_generator(value) or is_stateful(value)


def _fingerprint(value: Any) -> Any:
    """Equal as long as the value is unchanged, but for a change of a tensor that leaves its sum as it was."""
    if isinstance(value, Tensor):
        return id(value), value.shape, _sum(value)
    if is_generator(value):
        return repr(generator_state(value))
    tree = value.state_dict()
    return _fingerprint_of_tree(tree)


def _fingerprint_of_tree(tree: Any) -> Any:
    if isinstance(tree, Tensor):
        return tree.shape, _sum(tree)
    if isinstance(tree, Mapping):
        return [(key, _fingerprint_of_tree(each)) for key, each in tree.items()]
    if isinstance(tree, list | tuple):
        return [*map(_fingerprint_of_tree, tree)]
    return tree if isinstance(tree, bool | int | float | str | None) else type(tree).__name__


def _sum(tensor: Tensor) -> str:
    """In words, as NaN equals NaN there; empty where torch cannot sum it, as of a quantized tensor."""
    try:
        with torch.no_grad():
            return repr(float(tensor.detach().to(torch.float64).sum()))
    except (RuntimeError, TypeError):
        return ""
