"""The first call of every function of oneMKL's vector mathematics, made by one thread.

On x86 processors torch computes sqrt, exp, tanh and similar functions by that library, which chooses a function's
kernel at its first call. When several compute threads make that first call at once, one of them may use a kernel of low
accuracy, thousands of units in the last place off, for that call only. So the same job, started twice, could train
differently. Seen with torch 2.13, and reported for 2.10 in https://github.com/pytorch/pytorch/issues/188792
"""

from __future__ import annotations

import torch

FUNCTIONS = (
    *("abs", "acos", "asin", "atan", "cos", "cosh", "erf", "erfc", "erfinv", "exp", "expm1"),
    *("lgamma", "log", "log10", "log1p", "log2", "sin", "sinh", "sqrt", "tan", "tanh", "trunc"),
)


def make_first_calls() -> None:
    """To be called before the user's code computes anything in this process; calling it again is harmless."""
    with torch.inference_mode():
        for dtype in (torch.float32, torch.float64):  # the others are computed without that library
            one = torch.ones(1, dtype=dtype, device="cpu")
            for name in FUNCTIONS:
                getattr(torch, name)(one)
