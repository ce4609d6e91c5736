"""What ranks that hold layers together tell each other, forward, and the reverse of it, backward.

A layer that is divided takes what every rank has and gives each a share of a sum, or the other way round. What every
rank has is either the whole, or its part of a sequence: then the whole is gathered where a divided layer begins, and
its sum is shared out where it ends, which sends as much as summing the whole does.

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
    """Where divided layers begin and end, of what every rank has whole."""

    ranks: Ranks

    def begin(self, rows: Tensor) -> Tensor:
        """The whole, for a layer of which this rank has a share."""
        return _apply(_Copied, rows, self.ranks)

    def end(self, rows: Tensor) -> Tensor:
        """The sum of what the shares of such a layer have computed."""
        return _apply(_Summed, rows, self.ranks)


@dataclass(slots=True)
class SequenceExchange:
    """As Exchange, where each rank has its part of a sequence, along dimension `dim`, between the layers.

    Parts are of equal size: those of the last ranks repeat its last item where the length asks for it, and nothing is
    made of what is repeated.
    """

    ranks: Ranks
    dim: int
    length: int = 0  # of the sequence that is on its way

    def enter(self, rows: Tensor) -> Tensor:
        """This rank's part of a sequence that each has whole."""
        self.length = rows.shape[self.dim]
        return _apply(_Taken, rows, self)

    def begin(self, rows: Tensor) -> Tensor:
        return _apply(_Gathered, rows, self)

    def end(self, rows: Tensor) -> Tensor:
        return _apply(_SharedOut, rows, self)

    def leave(self, rows: Tensor) -> Tensor:
        """The sequence, whole again."""
        return _apply(_Given, rows, self)


Between = Exchange | SequenceExchange


def total(rows: Tensor, ranks: Ranks) -> Tensor:
    """The sum over ranks, in a new tensor."""
    found = rows.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(found, group=ranks.group)
    return found


class _Copied(torch.autograd.Function):
    """What every rank has, given to shares: their gradients are summed."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, ranks: Ranks) -> Tensor:
        ctx.ranks = ranks
        return rows.view_as(rows)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return total(gradients[0], ctx.ranks), None


class _Summed(torch.autograd.Function):
    """Of what shares have computed; every rank has it, and its gradient, whole."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, ranks: Ranks) -> Tensor:
        return total(rows, ranks)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0], None


class _Taken(torch.autograd.Function):
    """A part of what every rank has: their gradients are put behind each other."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, way: SequenceExchange) -> Tensor:
        ctx.way, ctx.length = way, rows.shape[way.dim]
        ranks, each = way.ranks, _part(ctx.length, way.ranks)
        positions = torch.arange(ranks.rank * each, (ranks.rank + 1) * each, device=rows.device)
        return rows.index_select(way.dim, positions.clamp_(max=ctx.length - 1))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return _gathered(gradients[0], ctx.way.dim, ctx.length, ctx.way.ranks), None


class _Given(torch.autograd.Function):
    """Parts put behind each other, which every rank has, and whose gradient each has whole."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, way: SequenceExchange) -> Tensor:
        ctx.way = way
        return _gathered(rows, way.dim, way.length, way.ranks)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        way: SequenceExchange = ctx.way
        filled, each = _filled(gradients[0], way.dim, way.ranks)
        return filled.narrow(way.dim, way.ranks.rank * each, each).clone(), None


class _Gathered(_Given):
    """Parts put behind each other, given to shares: their gradients are summed, and each rank has its part of that."""

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return _shared_out(gradients[0], ctx.way.dim, ctx.way.ranks), None


class _SharedOut(_Taken):
    """Of the sum of what shares have computed, each rank its part: their gradients are put behind each other."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, way: SequenceExchange) -> Tensor:
        ctx.way, ctx.length = way, rows.shape[way.dim]
        return _shared_out(rows, way.dim, way.ranks)


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
    """The sequence with zeros behind it, so that it has equal parts; the length of one."""
    each = _part(rows.shape[dim], ranks)
    missing = ranks.size * each - rows.shape[dim]
    behind = rows.dim() - 1 - dim % rows.dim()
    return functional.pad(rows, (*(0, 0) * behind, 0, missing)) if missing else rows, each


def _apply(function: type[torch.autograd.Function], rows: Tensor, way: Any) -> Tensor:
    return function.apply(rows, way)  # pyright: ignore[reportReturnType]
