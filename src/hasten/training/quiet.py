"""Looking at a model without leaving a trace: its modes are put back, and what inference left in it is made usable."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

# One function for every room; `tune`, which may not import `data`, reaches it through this one.
from hasten.data.randomness import undisturbed as undisturbed


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Every module in evaluation mode inside the block; each one's own mode, frozen parts included, after it."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


def release_inference_tensors(modules: Iterable[nn.Module], spared: Collection[int] = ()) -> None:
    """Replace tensors that a module created and kept during inference_mode, such as a cached table of positions.

    Autograd refuses to save them for a backward pass, so the next training step would fail on what an evaluation left.
    spared: the numbers of buffers and parameters that were made for inference before it.
    """
    for module in modules:
        for name, buffer in module._buffers.items():
            if buffer is not None and buffer.is_inference() and id(buffer) not in spared:
                module._buffers[name] = buffer.clone()
        for name, parameter in module._parameters.items():
            if parameter is not None and parameter.is_inference() and id(parameter) not in spared:
                module._parameters[name] = nn.Parameter(parameter.clone(), parameter.requires_grad)
        for name, value in vars(module).items():
            if name not in _OF_THE_MODULE:
                vars(module)[name] = _released(value)


_OF_THE_MODULE = frozenset({"_parameters", "_buffers", "_modules"})


def _released(value: Any) -> Any:
    """The value, with every inference tensor in it replaced; lists and dictionaries stay the same objects."""
    if isinstance(value, torch.Tensor):
        return value.clone() if value.is_inference() else value
    if isinstance(value, dict):
        for key, item in value.items():
            value[key] = _released(item)
    elif isinstance(value, list):
        value[:] = [_released(item) for item in value]
    elif type(value) is tuple:
        return tuple(_released(item) for item in value)
    return value
