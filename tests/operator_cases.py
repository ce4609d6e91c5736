"""Every fused operator beside torch's own: whoever is listed here is put to all shared tests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from hasten.kernels.cross_entropy import REDUCTIONS, cross_entropy
from hasten.kernels.gelu import gelu
from hasten.kernels.softmax import softmax


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
ALL = [*GELU, *CROSS_ENTROPY, SOFTMAX]
