"""State that a run has beside its model and optimizers: what the job declares.

    Job(loss=distillation, state={"teacher": teacher, "noise": torch.Generator()})

A loss that has `state_dict` and `load_state_dict` is declared by being one. A checkpoint holds what is declared; a
retried window and an evaluation leave it as they found it. Nothing is searched for. Why: a walk over the objects that a
loss can reach finds most of them, never all, and takes as much code as a trainer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from hasten.data.order.randomness import derived, generator_state, is_generator, seed_generator, set_generator_state
from hasten.facts.job import Job
from hasten.training.state.made_buffers import make_buffers


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

    def generator_states(self) -> list[Any]:
        return [generator_state(each) for each in self._generators]

    def set_generator_states(self, states: list[Any]) -> None:
        for each, state in zip(self._generators, states, strict=True):
            set_generator_state(each, state)

    def reseed_generators(self, number: int) -> None:
        """Seed each with another number below 2^64, which follows from this one."""
        for position, each in enumerate(self._generators):
            seed_generator(each, derived(number, position))


def declared_by(job: Job) -> DeclaredState:
    parts = dict(job.state)
    if is_stateful(job.loss):
        parts["loss"] = job.loss
    return DeclaredState(parts)


def is_stateful(value: Any) -> bool:
    return all(callable(getattr(value, method, None)) for method in ("state_dict", "load_state_dict"))


def copied(tree: Any) -> Any:
    """Tensors cloned and containers copied, so that it stays as it is."""
    if isinstance(tree, Tensor):
        with torch.no_grad():
            return tree.detach().clone()
    if isinstance(tree, Mapping):
        return {key: copied(each) for key, each in tree.items()}
    if isinstance(tree, list | tuple):
        items = [copied(each) for each in tree]
        return items if isinstance(tree, list) else tuple(items)
    return tree
