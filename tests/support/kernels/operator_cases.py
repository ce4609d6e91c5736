"""Every fused operator beside torch's own: whoever is listed here is put to all shared tests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from hasten.kernels.activation.bias_gelu_dropout import bias_gelu_dropout
from hasten.kernels.activation.gelu import gelu
from hasten.kernels.attention.scaled_dot_product_attention import attention
from hasten.kernels.normalization.add_layer_norm import add_layer_norm, layer_norm
from hasten.kernels.softmax.cross_entropy import REDUCTIONS, cross_entropy
from hasten.kernels.softmax.softmax import softmax


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """ours, theirs: of the same tensors, the same tensor. made: (rows, width) -> what they take, in float64; those of
    floating-point numbers are differentiated. overload: what they end in, for torch's own checks.
    roundings: of the greatest number, by which an error may be greater than twice torch's: more than one where
    matrices are multiplied, whose sums torch's own may have been lucky with."""

    name: str
    ours: Callable[..., Tensor]
    theirs: Callable[..., Tensor]
    made: Callable[[int, int], tuple[Tensor, ...]]
    overload: torch._ops.OpOverload
    as_given: Callable[[Tensor], Tensor] = lambda tensor: tensor  # to the overload
    options: tuple[object, ...] = ()  # of the overload, behind the tensors
    checked_as: torch.dtype = torch.float32  # by torch's own checks
    roundings: int = 1
    nan_stays: bool = True  # in torch's own, which has 0 in its place where this is False
    huge: float = 1e30  # of norms one whose square is a float


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


def row_and_vector(rows: int, width: int) -> tuple[Tensor, ...]:
    """Multiples of 1/16, so that a sum is exact also in bfloat16: theirs rounds it, ours does not."""
    given = 3 * torch.randn(rows, width, dtype=torch.float64), torch.randn(width, dtype=torch.float64)
    return tuple((each * 16).round() / 16 for each in given)


SEED = torch.tensor(0x123456789ABCDEF)  # torch has other masks: nothing is dropped here


def _bias_gelu(x: Tensor, bias: Tensor, approximate: str) -> Tensor:
    return functional.gelu(x + bias, approximate=approximate)


def scores_and_targets(rows: int, classes: int) -> tuple[Tensor, Tensor]:
    """Some of the rows are ignored."""
    target = torch.randint(0, classes, (rows,))
    return 3 * torch.randn(rows, classes, dtype=torch.float64), target.masked_fill(torch.rand(rows) < 0.2, -100)


def weighed(rows: Tensor) -> Tensor:
    """Each column by another number, as shares have no gradient for one that all are given."""
    return rows * torch.linspace(-1, 1, rows.shape[-1], dtype=rows.dtype)


GELU = [
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
NORMS = [
    Case(
        name="add_layer_norm",
        ours=_sum_and_normed,
        theirs=_added_and_normed,
        made=rows_and_columns(2, 2),
        overload=torch.ops.hasten.layer_norm.default,
        options=(1e-5,),
        huge=1e15,
    ),
    Case(
        name="layer_norm",
        ours=layer_norm,
        theirs=lambda x, weight, bias: functional.layer_norm(x, weight.shape, weight, bias),
        made=rows_and_columns(1, 2),
        overload=torch.ops.hasten.layer_norm.default,
        options=(1e-5,),
        huge=1e15,
    ),
]
BIAS_GELU_DROPOUT = [
    Case(
        name=f"bias_gelu_dropout-{approximate}",
        ours=partial(bias_gelu_dropout, p=0, approximate=approximate, seed=SEED),
        theirs=partial(_bias_gelu, approximate=approximate),
        made=row_and_vector,
        overload=torch.ops.hasten.bias_gelu_dropout.default,
        options=(SEED, 0.0, approximate),
    )
    for approximate in ("none", "tanh")
]
CROSS_ENTROPY = [
    Case(
        name=f"cross_entropy-{reduction}",
        ours=partial(cross_entropy, reduction=reduction),
        theirs=partial(functional.cross_entropy, reduction=reduction),
        made=scores_and_targets,
        overload=torch.ops.hasten.cross_entropy.default,
        options=(-100,),
    )
    for reduction in REDUCTIONS
]
SOFTMAX = Case(
    name="softmax",
    ours=lambda x: weighed(softmax(x)),
    theirs=lambda x: weighed(torch.softmax(x, -1)),
    made=rows_of(3.0),
    overload=torch.ops.hasten.softmax.default,
)
ATTENTION = [
    Case(
        name=f"attention-{'causal' if causal else 'whole'}",
        ours=lambda q, k, v, causal=causal: attention(q[None, None], k[None, None], v[None, None], causal=causal)[0, 0],
        theirs=lambda q, k, v, causal=causal: functional.scaled_dot_product_attention(
            q[None, None], k[None, None], v[None, None], is_causal=causal
        )[0, 0],
        made=rows_of(1.5, 1.5, 1.0),
        overload=torch.ops.hasten.attention.default,
        as_given=lambda tensor: tensor[None, None],
        options=(causal, 0.5),
        checked_as=torch.bfloat16,
        roundings=4,
        nan_stays=False,
    )
    for causal in (False, True)
]
ALL = [*GELU, *NORMS, *BIAS_GELU_DROPOUT, *CROSS_ENTROPY, SOFTMAX, *ATTENTION]
ONE_OF_EACH = [*{case.overload: case for case in reversed(ALL)}.values()]
