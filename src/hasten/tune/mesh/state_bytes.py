"""How much state a job's optimizers have for each parameter, found by one real step of them on small parameters."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from hasten.facts.job import Job
from hasten.techniques.setup import OptimizerOptions
from hasten.training.setup.optimizers import build_optimizers
from hasten.tune.mesh.torch_trees import tensors_in

LONGEST = 8  # elements of a small parameter in any dimension


def state_bytes(job: Job, model: nn.Module, options: OptimizerOptions) -> dict[str, float]:
    """Bytes, by the names of the model's parameters. They are replaced by small ones, so the model cannot be used for
    anything else afterwards.

    A tensor of state that has a small parameter's length in a dimension is assumed to have the parameter's length
    there, as moments and the factors of their approximations do.
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
        found[name] = sum(
            _scaled_bytes(each, parameter, shapes[name]) for each in tensors_in([dict(state) for state in states])
        )
    return found


def _replace_parameters(model: nn.Module) -> None:
    """Tied ones stay tied."""
    made = dict[int, nn.Parameter]()
    for module in model.modules():
        for name, own in list(module.named_parameters(recurse=False, remove_duplicate=False)):
            if id(own) not in made:
                size = [min(length, LONGEST) for length in own.shape]
                values = torch.ones(size, dtype=own.dtype)
                made[id(own)] = nn.Parameter(values, requires_grad=own.requires_grad)
            setattr(module, name, made[id(own)])


def _scaled_bytes(state: Tensor, small: Tensor, shape: tuple[int, ...]) -> float:
    if state.dim() != small.dim():
        return state.nbytes
    elements = 1
    for length, short, long in zip(state.shape, small.shape, shape, strict=True):
        elements *= long if length == short else length
    return elements * state.element_size()
