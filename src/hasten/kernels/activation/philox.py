"""Random numbers that are a function of where they stand, so that none is kept: Philox4x32-10.

    words = drawn(seed, rows, width)            # the same whenever it is asked, on whatever device, by any threads

A counter of 128 bits goes through ten rounds of two products and an exclusive or, under a key of 64: what comes out are
four numbers of 32 bits that look random, and passed the batteries of tests that were known. The key is the seed. The
counter is a row's number and a column's, so a number depends on these two alone, not on how many there are of either.
Four counters' numbers are dealt out to sixteen neighbours each, which suits a processor's vectors: column c has number
c % 64 // 16 of the counter c // 64 · 16 + c % 16. This is that in torch's own functions; philox.h is the fast form, and
gives the same to the bit.

Source: Salmon, Moraes, Dror and Shaw 2011, "Parallel random numbers: as easy as 1, 2, 3"; their library is Random123.
"""

from __future__ import annotations

import torch
from torch import Tensor

_LOW = 0xFFFFFFFF
_FACTORS = (0xD2511F53, 0xCD9E8D57)
_STEPS = (0x9E3779B9, 0xBB67AE85)  # of the key, from one round to the next
_NEIGHBOURS = 64  # that one counter of sixteen serves, with four numbers each


def drawn(seed: int, rows: int, width: int, device: torch.device | str = "cpu") -> Tensor:
    """rows × width numbers of 32 bits, as int64. seed: of 64 bits."""
    row = torch.arange(rows, dtype=torch.int64, device=device)[:, None]
    blocks = -(-width // _NEIGHBOURS)
    column = torch.arange(blocks * 16, dtype=torch.int64, device=device)[None, :]
    four = philox((column & _LOW, row & _LOW, row >> 32, torch.zeros_like(row)), (seed & _LOW, seed >> 32 & _LOW))
    dealt = torch.stack([each.view(rows, blocks, 16) for each in four], dim=2)
    return dealt.flatten(1)[:, :width]


def philox(counter: tuple[Tensor, ...], key: tuple[int, int]) -> tuple[Tensor, ...]:
    """The four numbers of each counter; all of them of 32 bits, in int64."""
    first, second, third, fourth = counter
    for number in range(10):
        keys = [(start + number * step) & _LOW for start, step in zip(key, _STEPS, strict=True)]
        a, b = first * _FACTORS[0], third * _FACTORS[1]  # what of a product does not fit goes round, and stays right
        first, second, third, fourth = (
            (b >> 32 & _LOW) ^ second ^ keys[0],
            b & _LOW,
            (a >> 32 & _LOW) ^ fourth ^ keys[1],
            a & _LOW,
        )
    return first, second, third, fourth
