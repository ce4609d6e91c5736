"""Three numbers by which the values of a tensor are known again, at the price of one pass over it.

Its projection on a fixed row of random signs, its size, and where it is not finite. What is moved in one place, or
drawn anew, changes the projection by about as much as it moved; roundings that point nowhere add up to little. Of two
numbers that change places it sees those that have other signs: one half of all pairs.

Source: Johnson and Lindenstrauss 1984; with random signs, Achlioptas 2003.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable

import torch
from torch import Tensor

_AT_ONCE = 2**20  # numbers that are looked at in float64 at a time
_TURN = 0.6180339887498949  # from one piece to the next, so that no two are weighed alike


def fingerprint(tensor: Tensor) -> Tensor:
    """[3], float64, on the tensor's device: the projection and the norm of its finite numbers, and a number for where
    and which the others are: 0 where there are none. Of a tensor of any shape and format that is not sparse."""
    held = tensor.detach().resolve_conj()
    real = torch.view_as_real(held) if held.is_complex() else held
    pieces = real.flatten().split(_AT_ONCE)
    found = _summed(pieces, tensor.device)
    if found.isfinite().all():
        return found
    # A number that is none would hide whatever is beside it.
    finite = _summed([piece.double().nan_to_num(0.0, 0.0, 0.0) for piece in pieces], tensor.device)
    others = _summed([_not_finite(piece.double()) for piece in pieces], tensor.device)
    return torch.stack((finite[0], finite[1], others[0] + others[1] * _TURN))


def _summed(pieces: Iterable[Tensor], device: torch.device) -> Tensor:
    found = torch.zeros(3, dtype=torch.float64, device=device)
    for number, piece in enumerate(pieces):
        values = piece.double()
        found[0] += (1 + number * _TURN % 1) * torch.dot(values, _signs(device)[: len(values)])
        found[1] += torch.dot(values, values)
    found[1].sqrt_()
    return found


def _not_finite(values: Tensor) -> Tensor:
    """A mark for each kind of them."""
    return values.isnan() * 1.0 + values.isposinf() * 2.0 + values.isneginf() * 5.0


@functools.cache
def _signs(device: torch.device) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    signs = torch.randint(0, 2, (_AT_ONCE,), generator=generator, dtype=torch.int8) * 2 - 1
    return signs.double().to(device)
