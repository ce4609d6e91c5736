"""Every fused operator beside torch's own: whoever is listed here is put to all shared tests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from hasten.kernels.bias_gelu_dropout import bias_gelu_dropout
from hasten.kernels.gelu import gelu
from hasten.kernels.philox import drawn


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """ours, theirs: of the same tensors, the same tensor. made: (rows, width) -> what they take, in float64; those of
    floating-point numbers are differentiated. overload: what they end in, for torch's own checks."""

    name: str
    ours: Callable[..., Tensor]
    theirs: Callable[..., Tensor]
    made: Callable[[int, int], tuple[Tensor, ...]]
    overload: torch._ops.OpOverload
    options: tuple[object, ...] = ()  # of the overload, behind the tensors


def rows_of(*scales: float) -> Callable[[int, int], tuple[Tensor, ...]]:
    """Matrices of random rows, of these spreads."""
    return lambda rows, width: tuple(scale * torch.randn(rows, width, dtype=torch.float64) for scale in scales)


def row_and_vector(rows: int, width: int) -> tuple[Tensor, ...]:
    """Multiples of 1/16, so that a sum is exact also in bfloat16: theirs rounds it, ours does not."""
    given = 3 * torch.randn(rows, width, dtype=torch.float64), torch.randn(width, dtype=torch.float64)
    return tuple((each * 16).round() / 16 for each in given)


SEED = torch.tensor(0x123456789ABCDEF)


def _composed_dropout(x: Tensor, bias: Tensor, approximate: str) -> Tensor:
    kept = drawn(int(SEED), *x.shape) >= 2**30
    return functional.gelu(x + bias, approximate=approximate) * (kept.to(x.dtype) / 0.75)


ALL = [
    Case(
        name=f"gelu-{approximate}",
        ours=partial(gelu, approximate=approximate),
        theirs=partial(functional.gelu, approximate=approximate),
        made=rows_of(3.0),
        overload=torch.ops.hasten.gelu.default,
        options=(approximate,),
    )
    for approximate in ("none", "tanh")
]
ALL += [
    Case(
        name=f"bias_gelu_dropout-{approximate}",
        ours=partial(bias_gelu_dropout, p=0.25, approximate=approximate, seed=SEED),
        theirs=partial(_composed_dropout, approximate=approximate),
        made=row_and_vector,
        overload=torch.ops.hasten.bias_gelu_dropout.default,
        options=(SEED, 0.25, approximate),
    )
    for approximate in ("none", "tanh")
]
