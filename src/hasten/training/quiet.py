"""Looking at a model without leaving a trace: modes and random states are put back as they were."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn


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


@contextmanager
def preserved_randomness(device: torch.device) -> Iterator[None]:
    """All global generators, torch's, NumPy's and Python's, go on after the block as if it had not been."""
    state = random_state(device)
    try:
        yield
    finally:
        set_random_state(state, device)


def random_state(device: torch.device) -> dict[str, Any]:
    """The states of every global generator that training code may draw from: torch's, NumPy's and Python's."""
    return {
        "torch": torch.get_rng_state(),
        "device": torch.cuda.get_rng_state(device) if device.type == "cuda" else None,
        "numpy": np.random.get_state(),
        "python": random.getstate(),
    }


def set_random_state(state: Mapping[str, Any], device: torch.device) -> None:
    torch.set_rng_state(state["torch"])
    if state["device"] is not None:
        torch.cuda.set_rng_state(state["device"], device)
    np.random.set_state(state["numpy"])
    random.setstate(state["python"])


def release_inference_tensors(model: nn.Module) -> None:
    """Replace tensors that a module created and kept during inference_mode, such as a cached table of positions.

    Autograd refuses to save them for a backward pass, so the next training step would fail on what an evaluation left.
    """
    for module in model.modules():
        for name, buffer in module._buffers.items():
            if buffer is not None and buffer.is_inference():
                module._buffers[name] = buffer.clone()
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
