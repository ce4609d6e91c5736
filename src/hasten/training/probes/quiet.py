"""Looking at a model without leaving a trace: its modes are put back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

# One function for every room; `tune`, which may not import `data`, reaches it through this one.
from hasten.data.order.randomness import undisturbed as undisturbed


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
