"""The collectives at both ends of divided layers, with the reverse collectives in the backward pass.

Source: Megatron-LM, Shoeybi et al. 2019, arXiv:1909.08053.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from hasten.facts.ranks import Ranks

Collective = Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class Exchange:
    """Every rank has whole activations between divided layers."""

    ranks: Ranks

    def begin(self, rows: Tensor) -> Tensor:
        """At the input of a divided layer: the same tensor; gradients are summed over ranks."""
        return _apply(rows, lambda rows: rows.view_as(rows), lambda gradient: _total(gradient, self.ranks))

    def end(self, rows: Tensor) -> Tensor:
        """At its output: the sum over ranks."""
        return _apply(rows, lambda rows: _total(rows, self.ranks), lambda gradient: gradient)


def _total(rows: Tensor, ranks: Ranks) -> Tensor:
    """The sum over ranks, in a new tensor."""
    found = rows.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(found, group=ranks.group)
    return found


class _Exchanged(torch.autograd.Function):
    """A linear function of a tensor, and the function that its gradient is given to."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, forward: Collective, backward: Collective) -> Tensor:
        ctx.of_gradient = backward
        return forward(rows)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        return ctx.of_gradient(gradients[0]), None, None


def _apply(rows: Tensor, forward: Collective, backward: Collective) -> Tensor:
    return _Exchanged.apply(rows, forward, backward)  # pyright: ignore[reportReturnType]
