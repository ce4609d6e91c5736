"""Two numbers by which the values of a tensor are known again, at the price of one pass over it.

Its projection on a fixed row of random signs, and its size. What is moved in one place, swapped or drawn anew changes
the projection by about as much as it moved; roundings that point nowhere add up to little.

Source: Johnson and Lindenstrauss 1984; with random signs, Achlioptas 2003.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor

_AT_ONCE = 2**20  # numbers that are looked at in float64 at a time
_TURN = 0.6180339887498949  # from one piece to the next, so that no two are weighed alike


def fingerprint(tensor: Tensor) -> Tensor:
    """[2], float64, on the tensor's device: its projection and its norm. Of a tensor of any shape and format."""
    found = torch.zeros(2, dtype=torch.float64, device=tensor.device)
    held = tensor.detach()
    real = torch.view_as_real(held) if held.is_complex() else held
    for number, piece in enumerate(real.flatten().split(_AT_ONCE)):
        values = piece.double()
        found[0] += (1 + number * _TURN % 1) * torch.dot(values, _signs(tensor.device)[: len(values)])
        found[1] += torch.dot(values, values)
    found[1].sqrt_()
    return found


@functools.cache
def _signs(device: torch.device) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    signs = torch.randint(0, 2, (_AT_ONCE,), generator=generator, dtype=torch.int8) * 2 - 1
    return signs.double().to(device)
