"""Look at a model without leaving a trace: what was counted or switched meanwhile is put back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn


@contextmanager
def same_state(model: nn.Module) -> Iterator[None]:
    """The buffers of `model` end with the values, and its modules with the train or eval flags, that they began with.

    Attributes of a module that are neither (a counter in plain Python) are not seen.
    """
    training = [(module, module.training) for module in model.modules()]
    buffers = [(owner, name, buffer, buffer.detach().clone()) for owner, name, buffer in owned_buffers(model)]
    try:
        yield
    finally:
        for module, flag in training:
            module.training = flag
        with torch.no_grad():
            for owner, name, buffer, value in buffers:
                setattr(owner, name, buffer.copy_(value))


def owned_buffers(model: nn.Module) -> list[tuple[nn.Module, str, torch.Tensor]]:
    """Every buffer with the module that owns it and its name there."""
    return [
        (module, name, buffer) for module in model.modules() for name, buffer in module.named_buffers(recurse=False)
    ]
