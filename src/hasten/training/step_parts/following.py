"""A loss function whose own tensors, class weights for instance, are where the predictions are.

A job's loss is made before anyone knows the device, and may be used on several: by a search, or by a plan for another
machine. So nothing of it is moved; a copy is made for each device on which its tensors are not, when it is first used
there.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn


def following(loss: Callable[..., Tensor]) -> Callable[[torch.device], Callable[..., Tensor]]:
    """(device) -> the loss with its tensors there.

    loss: a module, or a partial that holds modules or tensors. Where nothing is to be moved it is itself returned.
    """
    there: dict[torch.device, Callable[..., Tensor]] = {}

    def on(device: torch.device) -> Callable[..., Tensor]:
        found = there.get(device)
        if found is None:
            found = there[device] = _moved(loss, device)
        return found

    return on


def held_tensors(value: Any) -> list[Tensor]:
    """The parameters, buffers and arguments that come with a loss."""
    if isinstance(value, partial):
        parts = (value.func, *value.args, *value.keywords.values())
        return [tensor for part in parts for tensor in held_tensors(part)]
    if isinstance(value, nn.Module):
        return [*value.parameters(), *value.buffers()]
    return [value] if isinstance(value, Tensor) else []


def _moved(value: Any, device: torch.device) -> Any:
    if all(tensor.device == device for tensor in held_tensors(value)):
        return value
    # The first use may be an evaluation, and what inference mode makes cannot be trained with.
    with torch.inference_mode(False):
        if isinstance(value, partial):
            keywords = {name: _moved(each, device) for name, each in value.keywords.items()}
            return partial(_moved(value.func, device), *(_moved(each, device) for each in value.args), **keywords)
        return copy.deepcopy(value).to(device) if isinstance(value, nn.Module) else value.to(device)
