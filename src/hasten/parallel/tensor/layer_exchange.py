"""The collectives at both ends of divided layers, with the reverse collectives in the backward pass.

Between divided layers every rank has either the whole activation, or its part of the sequence. In the second case the
sequence is gathered where a divided layer begins, and reduce-scattered where it ends; that sends as much as the
all-reduce of the first case.

Source: Megatron-LM, Shoeybi et al. 2019, arXiv:1909.08053; of sequences, Korthikanti et al. 2022, arXiv:2205.05198.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional

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
        return _apply(rows, self._padded_part, partial(self._gather, length=self.length))

    def begin(self, rows: Tensor) -> Tensor:
        return _apply(rows, partial(self._gather, length=self.length), self._reduce_scatter)

    def end(self, rows: Tensor) -> Tensor:
        return _apply(rows, self._reduce_scatter, partial(self._gather, length=rows.shape[self.dim]))

    def leave(self, rows: Tensor) -> Tensor:
        """The whole sequence, from the parts."""
        whole = partial(self._gather, length=self.length)
        return _apply(rows, whole, lambda gradient: self._parts(gradient)[self.ranks.rank])

    def _padded_part(self, rows: Tensor) -> Tensor:
        length = rows.shape[self.dim]
        each = -(-length // self.ranks.size)
        positions = torch.arange(self.ranks.rank * each, (self.ranks.rank + 1) * each, device=rows.device)
        return rows.index_select(self.dim, positions.clamp_(max=length - 1))

    def _gather(self, rows: Tensor, length: int) -> Tensor:
        own = rows.contiguous()
        parts = [torch.empty_like(own) for _ in range(self.ranks.size)]
        dist.all_gather(parts, own, group=self.ranks.group)
        return torch.cat(parts, self.dim).narrow(self.dim, 0, length)

    def _reduce_scatter(self, rows: Tensor) -> Tensor:
        parts = self._parts(rows)
        own = torch.empty_like(parts[0])
        dist.reduce_scatter(own, parts, group=self.ranks.group)
        return own

    def _parts(self, rows: Tensor) -> list[Tensor]:
        """Equal parts of a whole sequence, the last ones with zeros at their end, each in memory of its own."""
        length = rows.shape[self.dim]
        each = -(-length // self.ranks.size)
        behind = rows.dim() - 1 - self.dim % rows.dim()
        padded = functional.pad(rows, (*(0, 0) * behind, 0, self.ranks.size * each - length))
        return [part.clone(memory_format=torch.contiguous_format) for part in padded.split(each, self.dim)]


LayerExchange = Exchange | SequenceExchange


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
