"""The first call of every function of oneMKL's vector mathematics, made by one thread.

On an x86 processor torch computes sqrt, exp, tanh and their like by that library, which chooses a function's kernel
when it is first called. Where several compute threads call it first at once, one of them may compute its whole part
by a kernel of low accuracy, some thousand units in the last place from the right numbers, and only that once. So the
same job, begun twice, would train two ways: by data that were made otherwise, or by another first step. Seen with
torch 2.13 here, and told of 2.10 in https://github.com/pytorch/pytorch/issues/188792
"""

from __future__ import annotations

import torch

FUNCTIONS = (
    *("abs", "acos", "asin", "atan", "cos", "cosh", "erf", "erfc", "erfinv", "exp", "expm1"),
    *("lgamma", "log", "log10", "log1p", "log2", "sin", "sinh", "sqrt", "tan", "tanh", "trunc"),
)


def make_first_calls() -> None:
    """To be called before anything of the user's is computed in this process; again, it does no harm."""
    with torch.inference_mode():
        for dtype in (torch.float32, torch.float64):  # the others are computed without that library
            one = torch.ones(1, dtype=dtype, device="cpu")
            for name in FUNCTIONS:
                getattr(torch, name)(one)
