"""What philox.h computes, with torch's functions."""

from __future__ import annotations

import torch
from torch import Tensor

_LOW = 0xFFFFFFFF
_FACTORS = (0xD2511F53, 0xCD9E8D57)
_STEPS = (0x9E3779B9, 0xBB67AE85)  # of the key, from one round to the next
_COLUMNS = 64  # served by sixteen counters of four numbers each


def drawn(seed: int, rows: int, width: int) -> Tensor:
    """rows × width random numbers of 32 bits, as int64. seed: 64 bits."""
    row = torch.arange(rows, dtype=torch.int64)[:, None]
    blocks = -(-width // _COLUMNS)
    column = torch.arange(blocks * 16, dtype=torch.int64)[None, :]
    four = philox((column & _LOW, row & _LOW, row >> 32, torch.zeros_like(row)), (seed & _LOW, seed >> 32 & _LOW))
    dealt = torch.stack([each.view(rows, blocks, 16) for each in four], dim=2)
    return dealt.flatten(1)[:, :width]


def philox(counter: tuple[Tensor, ...], key: tuple[int, int]) -> tuple[Tensor, ...]:
    """The four 32-bit numbers of each counter, as int64."""
    first, second, third, fourth = counter
    for number in range(10):
        keys = [(start + number * step) & _LOW for start, step in zip(key, _STEPS, strict=True)]
        a, b = first * _FACTORS[0], third * _FACTORS[1]  # int64 overflow wraps around, and keeps the right bits
        first, second, third, fourth = (
            (b >> 32 & _LOW) ^ second ^ keys[0],
            b & _LOW,
            (a >> 32 & _LOW) ^ fourth ^ keys[1],
            a & _LOW,
        )
    return first, second, third, fourth
