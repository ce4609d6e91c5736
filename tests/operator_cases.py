"""Every fused operator beside torch's own: whoever is listed here is put to all shared tests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from hasten.kernels.add_layer_norm import add_layer_norm, layer_norm
from hasten.kernels.gelu import gelu
from hasten.kernels.rms_norm import rms_norm


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


def rows_and_columns(matrices: int, vectors: int) -> Callable[[int, int], tuple[Tensor, ...]]:
    """As many matrices of random rows off zero, in which neighbours differ, and vectors of a number for each column."""

    def made(rows: int, width: int) -> tuple[Tensor, ...]:
        uneven = torch.arange(width) % 2 * 4 - 1.5
        return (
            *(uneven + 0.3 * torch.randn(rows, width, dtype=torch.float64) for _ in range(matrices)),
            *(1 + 0.3 * torch.randn(width, dtype=torch.float64) for _ in range(vectors)),
        )

    return made


def _sum_and_normed(x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return torch.cat(add_layer_norm(x, residual, weight, bias), dim=-1)


def _added_and_normed(x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    total = x + residual
    return torch.cat((total, functional.layer_norm(total, weight.shape, weight, bias)), dim=-1)


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
] + [
    Case(
        name="layer_norm",
        ours=layer_norm,
        theirs=lambda x, weight, bias: functional.layer_norm(x, weight.shape, weight, bias),
        made=rows_and_columns(1, 2),
        overload=torch.ops.hasten.layer_norm.default,
        options=(1e-5,),
    ),
    Case(
        name="add_layer_norm",
        ours=_sum_and_normed,
        theirs=_added_and_normed,
        made=rows_and_columns(2, 2),
        overload=torch.ops.hasten.add_layer_norm.default,
        options=(1e-5,),
    ),
    Case(
        name="rms_norm",
        ours=partial(rms_norm, eps=1e-5),
        theirs=lambda x, weight: functional.rms_norm(x, weight.shape, weight, 1e-5),
        made=rows_and_columns(1, 1),
        overload=torch.ops.hasten.rms_norm.default,
        options=(1e-5,),
    ),
]
