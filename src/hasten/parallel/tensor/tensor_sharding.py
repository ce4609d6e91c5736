"""Parameters of which each rank of a group holds a share, as plain tensors.

Layers compute on shares with torch's own operations, at their own speed, and whatever works on plain parameters works
on these: replicas, fully_shard, checkpointing, any optimizer that moves each element by itself. Only who needs the
whole of a tensor asks here: a norm over all of them, and a state that is saved.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from hasten.facts.ranks import Ranks
from hasten.parallel.sums import add_up


class Split(NamedTuple):
    """Along which dimension a tensor is divided. parts: so many of equal size lie behind each other there, as queries,
    keys and values do in one matrix, and each of them is divided."""

    dim: int
    parts: int = 1

    def share(self, whole: Tensor, ranks: Ranks) -> Tensor:
        """What this rank holds: a copy of its own. The dimension is a multiple of parts · ranks.size."""
        parts = whole.unflatten(self.dim, (self.parts, -1))
        return parts.chunk(ranks.size, self.dim + 1)[ranks.rank].flatten(self.dim, self.dim + 1).clone()

    def whole(self, shares: Sequence[Tensor]) -> Tensor:
        """Of the shares of all ranks, in their order."""
        parts = [share.unflatten(self.dim, (self.parts, -1)) for share in shares]
        return torch.cat(parts, self.dim + 1).flatten(self.dim, self.dim + 1)


class Share(NamedTuple):
    """A tensor in a state that is to be made whole. All ranks of the group have one, and gather it together."""

    tensor: Tensor
    split: Split
    ranks: Ranks

    @property
    def shape(self) -> torch.Size:
        """Of the whole."""
        sizes = [*self.tensor.shape]
        sizes[self.split.dim] *= self.ranks.size
        return torch.Size(sizes)

    @property
    def dtype(self) -> torch.dtype:
        return self.tensor.dtype

    def gathered(self, tensor: Tensor) -> Tensor:
        """tensor: this rank's share, where that was in parts itself."""
        own = tensor.contiguous()
        shares = [torch.empty_like(own) for _ in range(self.ranks.size)]
        dist.all_gather(shares, own, group=self.ranks.group)
        return self.split.whole(shares)


@dataclass(frozen=True, slots=True)
class Divided:
    """splits: of the model's parameters that are divided, by their names in its state. ranks: that share them.

    partial: parameters that each rank has whole, and whose gradient it knows for its part of a sequence alone.
    """

    splits: Mapping[str, Split]
    ranks: Ranks
    partial: frozenset[str] = frozenset()

    def marked(self, named: Mapping[str, Any]) -> dict[str, Any]:
        """The same, by the same names, with a Share in the place of each tensor that is one."""
        return {name: self.mark(name, each) for name, each in named.items()}

    def mark(self, name: str, tensor: Any) -> Any:
        split = self.splits.get(name)
        return tensor if split is None or not isinstance(tensor, Tensor) else Share(tensor, split, self.ranks)

    def share(self, name: str, whole: Tensor) -> Tensor:
        """What this rank holds of a tensor that was saved whole; the tensor itself where it holds all."""
        split = self.splits.get(name)
        return whole if split is None else split.share(whole, self.ranks)

    def complete(self, parameters: Iterable[tuple[str, Tensor]]) -> None:
        """Sum gradients up, in place, that are known in part; once behind all microbatches of a step. A rank may have
        none of a parameter that its part of the sequence did not use."""
        found = [each for name, each in parameters if name in self.partial]
        if found:
            add_up(found, self.ranks, torch.zeros(0, dtype=torch.float64, device=found[0].device))

    def norm(
        self, gradients: Mapping[str, Tensor], norm_of: Callable[[Sequence[Tensor]], Tensor], kind: float
    ) -> Tensor:
        """Of all gradients of the whole model, each counted once. norm_of: of those that it is given."""
        own = [each for name, each in gradients.items() if name in self.splits]
        shared = [each for name, each in gradients.items() if name not in self.splits]
        norms = [norm_of(shared)] if shared or not own else []
        if own:
            mine = norm_of(own)
            theirs = [torch.empty_like(mine) for _ in range(self.ranks.size)]
            dist.all_gather(theirs, mine, group=self.ranks.group)
            norms += theirs
        return torch.linalg.vector_norm(torch.stack(norms), kind)

    def anywhere(self, found: Tensor) -> Tensor:
        """The largest of what each rank has found."""
        dist.all_reduce(found, dist.ReduceOp.MAX, group=self.ranks.group)
        return found
