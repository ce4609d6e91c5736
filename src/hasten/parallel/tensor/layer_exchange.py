"""The collectives at both ends of divided layers, with the reverse collectives in the backward pass.

Between divided layers every rank has either the whole activation, or its part of the sequence. In the second case the
sequence is gathered where a divided layer begins, and reduce-scattered where it ends; that sends as much as the
all-reduce of the first case.

Source: Megatron-LM, Shoeybi et al. 2019, arXiv:1909.08053; of sequences, Korthikanti et al. 2022, arXiv:2205.05198.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional

from hasten.facts.ranks import Ranks


@dataclass(frozen=True, slots=True)
class Exchange:
    """Every rank has whole activations between divided layers."""

    ranks: Ranks

    def begin(self, rows: Tensor) -> Tensor:
        """At the input of a divided layer: the same tensor; gradients are summed over ranks."""
        return _apply(_Copied, rows, self.ranks)

    def end(self, rows: Tensor) -> Tensor:
        """At its output: the sum over ranks."""
        return _apply(_Summed, rows, self.ranks)


@dataclass(slots=True)
class SequenceExchange:
    """Every rank has its part of the sequence, along dimension `dim`, between divided layers.

    Parts have equal size: the last ranks' parts are padded with the last item, whose results are discarded.
    """

    ranks: Ranks
    dim: int
    length: int = 0  # of the present sequence

    def enter(self, rows: Tensor) -> Tensor:
        """This rank's part of a whole sequence."""
        self.length = rows.shape[self.dim]
        return _apply(_Taken, rows, self)

    def begin(self, rows: Tensor) -> Tensor:
        return _apply(_Gathered, rows, self)

    def end(self, rows: Tensor) -> Tensor:
        return _apply(_SharedOut, rows, self)

    def leave(self, rows: Tensor) -> Tensor:
        """The whole sequence, from the parts."""
        return _apply(_Given, rows, self)


LayerExchange = Exchange | SequenceExchange


def total(rows: Tensor, ranks: Ranks) -> Tensor:
    """The sum over ranks, in a new tensor."""
    found = rows.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(found, group=ranks.group)
    return found


class _Copied(torch.autograd.Function):
    """Identity; the backward pass sums over ranks."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, ranks: Ranks) -> Tensor:
        ctx.ranks = ranks
        return rows.view_as(rows)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return total(gradients[0], ctx.ranks), None


class _Summed(torch.autograd.Function):
    """Sum over ranks; the backward pass is the identity."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, ranks: Ranks) -> Tensor:
        return total(rows, ranks)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0], None


class _Taken(torch.autograd.Function):
    """This rank's part; the backward pass gathers."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, exchange: SequenceExchange) -> Tensor:
        ctx.exchange, ctx.length = exchange, rows.shape[exchange.dim]
        ranks, each = exchange.ranks, _part(ctx.length, exchange.ranks)
        positions = torch.arange(ranks.rank * each, (ranks.rank + 1) * each, device=rows.device)
        return rows.index_select(exchange.dim, positions.clamp_(max=ctx.length - 1))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return _gathered(gradients[0], ctx.exchange.dim, ctx.length, ctx.exchange.ranks), None


class _Given(torch.autograd.Function):
    """Gather; the backward pass takes this rank's part."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, exchange: SequenceExchange) -> Tensor:
        ctx.exchange = exchange
        return _gathered(rows, exchange.dim, exchange.length, exchange.ranks)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        exchange: SequenceExchange = ctx.exchange
        filled, each = _filled(gradients[0], exchange.dim, exchange.ranks)
        return filled.narrow(exchange.dim, exchange.ranks.rank * each, each).clone(), None


class _Gathered(_Given):
    """Gather; the backward pass reduce-scatters."""

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return _shared_out(gradients[0], ctx.exchange.dim, ctx.exchange.ranks), None


class _SharedOut(_Taken):
    """Reduce-scatter; the backward pass gathers."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, exchange: SequenceExchange) -> Tensor:
        ctx.exchange, ctx.length = exchange, rows.shape[exchange.dim]
        return _shared_out(rows, exchange.dim, exchange.ranks)


def _part(length: int, ranks: Ranks) -> int:
    return -(-length // ranks.size)


def _gathered(rows: Tensor, dim: int, length: int, ranks: Ranks) -> Tensor:
    own = rows.contiguous()
    parts = [torch.empty_like(own) for _ in range(ranks.size)]
    dist.all_gather(parts, own, group=ranks.group)
    return torch.cat(parts, dim).narrow(dim, 0, length)


def _shared_out(rows: Tensor, dim: int, ranks: Ranks) -> Tensor:
    filled, each = _filled(rows, dim, ranks)
    parts = [part.contiguous() for part in filled.split(each, dim)]
    own = torch.empty_like(parts[0])
    dist.reduce_scatter(own, parts, group=ranks.group)
    return own


def _filled(rows: Tensor, dim: int, ranks: Ranks) -> tuple[Tensor, int]:
    """The sequence padded with zeros to equal parts, and the length of one part."""
    each = _part(rows.shape[dim], ranks)
    missing = ranks.size * each - rows.shape[dim]
    behind = rows.dim() - 1 - dim % rows.dim()
    return functional.pad(rows, (*(0, 0) * behind, 0, missing)) if missing else rows, each


def _apply(function: type[torch.autograd.Function], rows: Tensor, exchange: Any) -> Tensor:
    return function.apply(rows, exchange)  # pyright: ignore[reportReturnType]
