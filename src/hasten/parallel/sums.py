"""Gradients of parameters that several ranks hold alike, of which each knows a part: their sum is what one would have.

Which ranks have one is known to none before. Zeros in the place of one that nobody has would let weight decay move what
nothing uses.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from hasten.facts.ranks import Ranks

_SMALL = 1 << 18  # elements of a gradient that travels with others: each journey takes its time


def add_up(parameters: Sequence[Tensor], ranks: Ranks, numbers: Tensor) -> Tensor:
    """The sum of some numbers, float64, over ranks; and of gradients, in place, all at once: None where no rank has
    one. All ranks call it alike."""
    reached = torch.tensor([each.grad is not None for each in parameters], dtype=torch.float64, device=numbers.device)
    told = torch.cat([numbers, reached])
    gradients = [local_of(_gradient(each)) for each in parameters]
    large = [each for each in gradients if each.numel() > _SMALL]
    small = _by_dtype(each for each in gradients if each.numel() <= _SMALL)
    joined = [torch.cat([each.flatten() for each in alike]) for alike in small]
    for work in [dist.all_reduce(each, group=ranks.group, async_op=True) for each in (told, *large, *joined)]:
        assert work is not None
        work.wait()
    for alike, whole in zip(small, joined, strict=True):
        for each, summed in zip(alike, whole.split([each.numel() for each in alike]), strict=True):
            each.copy_(summed.view_as(each))
    for parameter, anywhere in zip(parameters, told[len(numbers) :].tolist(), strict=True):
        if not anywhere:
            parameter.grad = None
    return told[: len(numbers)]


def local_of(tensor: Any) -> Tensor:
    """What this rank has of it, where it is in parts."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def _gradient(parameter: Tensor) -> Tensor:
    if parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter)
    return parameter.grad


def _by_dtype(tensors: Iterable[Tensor]) -> list[list[Tensor]]:
    """Kinds in the same order on each rank."""
    found = dict[torch.dtype, list[Tensor]]()
    for each in tensors:
        found.setdefault(each.dtype, []).append(each)
    return [*found.values()]
