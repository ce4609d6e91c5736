"""Buffers that a model registers, fills or grows while it trains: room for them in a new one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from hasten.training.state.tensor_forms import have_same_form, is_expanded


def make_buffers(model: nn.Module, weights: Mapping[str, Any]) -> None:
    """Let a new model have room for the weights of one that was trained."""
    modules = dict(model.named_modules())
    for place, each in weights.items():
        path, _, name = place.rpartition(".")
        module = modules.get(path)
        if module is None or not isinstance(each, Tensor) or name in module._parameters:
            continue
        present = module._buffers.get(name)
        if present is None or not have_same_form(present, each) or is_expanded(present):
            module._buffers[name] = torch.empty_like(each, device=_device_of(module, each.device))


def _device_of(module: nn.Module, otherwise: torch.device) -> torch.device:
    return next((each.device for each in (*module.parameters(), *module.buffers())), otherwise)
