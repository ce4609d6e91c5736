"""State that a run has beside its model and optimizers: what the job declares, and what it should have declared.

    Job(loss=distillation, state={"teacher": teacher, "noise": torch.Generator()})

A loss that has `state_dict` and `load_state_dict` is declared by being one. A checkpoint holds what is declared; a
retried window and an evaluation leave it unchanged. In the first steps, one level of what the loss holds is compared,
and generators that layers of the model hold: a change there that is not declared is an error.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from types import FunctionType, MethodType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from hasten.data.order.randomness import generator_state, is_generator, set_generator_state
from hasten.errors import JobError
from hasten.facts.job import Job
from hasten.training.state.torch_tensors import make_buffers

STEPS = 2  # a loss may build its state in the first step, and change it from the second on


class DeclaredState:
    """parts: name -> an object with state_dict and load_state_dict, or a random generator."""

    def __init__(self, parts: Mapping[str, Any]) -> None:
        self.parts = dict(parts)
        self.modules = [part for part in self.parts.values() if isinstance(part, nn.Module)]
        self._generators = [part for part in self.parts.values() if is_generator(part)]

    def __bool__(self) -> bool:
        return bool(self.parts)

    @property
    def has_more_than_generators(self) -> bool:
        return len(self.parts) > len(self._generators)

    def named_parameters(self) -> list[tuple[str, Tensor]]:
        """Of the modules, by their places."""
        return [
            (f"{name}.{key}", parameter)
            for name, part in self.parts.items()
            if isinstance(part, nn.Module)
            for key, parameter in part.named_parameters()
        ]

    def state_dict(self) -> dict[str, Any]:
        """It refers to the parts' own tensors: copy it, or write it, before the next step."""
        return {
            name: generator_state(part) if is_generator(part) else part.state_dict()
            for name, part in self.parts.items()
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Raises ValueError where other parts were saved, and what the parts' load_state_dict raises."""
        if state.keys() != self.parts.keys():
            saved, here = (", ".join(sorted(keys)) or "nothing" for keys in (state.keys(), self.parts.keys()))
            raise ValueError(f"it holds the declared state of {saved[:200]}, and this job declares {here}")
        for name, part in self.parts.items():
            if is_generator(part):
                set_generator_state(part, state[name])
                continue
            if isinstance(part, nn.Module):
                make_buffers(part, state[name])
            part.load_state_dict(copied(state[name]))  # a part may keep what it is given

    @contextmanager
    def preserved(self) -> Iterator[None]:
        """Whatever changes inside is restored afterwards."""
        before = copied(self.state_dict())
        try:
            yield
        finally:
            self.load_state_dict(before)


def declared_by(job: Job) -> DeclaredState:
    parts = dict(job.state)
    if is_stateful(job.loss):
        parts["loss"] = job.loss
    return DeclaredState(parts)


def is_stateful(value: Any) -> bool:
    return all(callable(getattr(value, method, None)) for method in ("state_dict", "load_state_dict"))


def copied(tree: Any) -> Any:
    """The tree with tensors cloned and containers copied."""
    if isinstance(tree, Tensor):
        with torch.no_grad():
            return tree.detach().clone()
    if isinstance(tree, Mapping):
        return {key: copied(each) for key, each in tree.items()}
    if isinstance(tree, list | tuple):
        items = [copied(each) for each in tree]
        return items if isinstance(tree, list) else tuple(items)
    return tree


# ── undeclared ──────────────────────────────────────────────────────────────────────────────────────────────────────


class _Candidate(NamedTuple):
    name: str
    value: Any
    before: Any


class UndeclaredState:
    """Made before the first step; call check() after each step, until `is_done`."""

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
            f"does not declare {', '.join(changed)}, which a training step changes, so no checkpoint would save it",
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
    """Equal as long as the value is unchanged. Tensors are compared by their sums."""
    if isinstance(value, Tensor):
        return value.shape, _sum(value)
    if is_generator(value):
        return repr(generator_state(value))
    if isinstance(value, Mapping):
        return [(key, _fingerprint(each)) for key, each in value.items()]
    if isinstance(value, list | tuple):
        return [*map(_fingerprint, value)]
    if is_stateful(value):
        return _fingerprint(value.state_dict())
    return value if isinstance(value, bool | int | float | str | None) else type(value).__name__


def _sum(tensor: Tensor) -> str:
    """As text, as NaN equals NaN there."""
    with torch.no_grad():
        return repr(float(tensor.detach().to(torch.float64).sum()))
