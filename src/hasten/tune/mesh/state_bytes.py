"""How much memory a job's optimizers keep for each parameter, found by one real step of them on small stand-ins."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from hasten.facts.job import Job
from hasten.techniques.setup import OptimizerOptions
from hasten.training.setup.optimizers import build_optimizers

LONGEST = 8  # elements of a stand-in in any direction


def state_bytes(job: Job, model: nn.Module, options: OptimizerOptions) -> dict[str, float]:
    """By the names of the model's parameters. The stand-ins take their place in the model, which is of no use behind
    this.

    A tensor of state that has a stand-in's length in a direction is taken to have its parameter's there, as moments and
    the factors of their approximations do.
    """
    shapes = {name: tuple(each.shape) for name, each in model.named_parameters()}
    _replace_parameters(model)
    optimizers = build_optimizers(job, model, options)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.grad = torch.ones_like(parameter)
    for optimizer in optimizers:
        optimizer.step()
    found = dict[str, float]()
    for name, parameter in model.named_parameters():
        states = [optimizer.state[parameter] for optimizer in optimizers if parameter in optimizer.state]
        found[name] = sum(_scaled_bytes(each, parameter, shapes[name]) for each in _tensors(states))
    return found


def _replace_parameters(model: nn.Module) -> None:
    """What several modules have, they still share."""
    made = dict[int, nn.Parameter]()
    for module in model.modules():
        for name, own in module._parameters.items():
            if own is not None:
                if id(own) not in made:
                    size = [min(length, LONGEST) for length in own.shape]
                    values = torch.ones(size, dtype=own.dtype)
                    made[id(own)] = nn.Parameter(values, requires_grad=own.requires_grad)
                module._parameters[name] = made[id(own)]


def _scaled_bytes(state: Tensor, stand_in: Tensor, shape: tuple[int, ...]) -> float:
    if state.dim() != stand_in.dim():
        return state.nbytes
    elements = 1
    for length, small, large in zip(state.shape, stand_in.shape, shape, strict=True):
        elements *= large if length == small else length
    return elements * state.element_size()


def _tensors(states: Any) -> Iterator[Tensor]:
    return (leaf for leaf in tree_leaves([dict(each) for each in states]) if isinstance(leaf, Tensor))
