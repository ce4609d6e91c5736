"""Philox4x32-10: random numbers that are a function of their position, so that none has to be saved.

    words = drawn(seed, rows, width)            # the same at every call, on any device, with any number of threads

Ten rounds of two products and an exclusive or mix a counter of 128 bits with a key of 64 bits, and return four numbers
of 32 bits that pass the known batteries of statistical tests. The key is the seed. The counter is the number of a row
and of a column, so a random number depends on these two alone. Counters are assigned to suit a processor's vectors:
column c gets number c % 64 // 16 of the counter c // 64 · 16 + c % 16. This file computes that with torch's functions.
philox.h is the fast form and returns the same bits.

Source: Salmon, Moraes, Dror and Shaw 2011, "Parallel random numbers: as easy as 1, 2, 3"; their library is Random123.
"""

from __future__ import annotations

import torch
from torch import Tensor

_LOW = 0xFFFFFFFF
_FACTORS = (0xD2511F53, 0xCD9E8D57)
_STEPS = (0x9E3779B9, 0xBB67AE85)  # of the key, from one round to the next
_COLUMNS = 64  # served by sixteen counters of four numbers each


def drawn(seed: int, rows: int, width: int, device: torch.device | str = "cpu") -> Tensor:
    """rows × width random numbers of 32 bits, as int64. seed: 64 bits."""
    row = torch.arange(rows, dtype=torch.int64, device=device)[:, None]
    blocks = -(-width // _COLUMNS)
    column = torch.arange(blocks * 16, dtype=torch.int64, device=device)[None, :]
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
