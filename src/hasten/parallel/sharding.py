"""What each rank holds of the model's tensors, and what follows from it for norms, finite checks and saved states.

A parameter is held in one of four ways:

* whole, on every rank (one process, replicas);
* as a DTensor, a part on each rank (fully_shard): torch's own operations handle these;
* as a plain tensor that is a share of a layer (tensor parallelism), described by a Split;
* on the ranks of one pipeline stage alone, with an empty tensor elsewhere, described by its stage.

The last two combine with each other and with DTensors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from hasten.facts.ranks import Ranks
from hasten.parallel.collectives import copy_from_first, gather_over_ranks, max_over_ranks, sum_gradients
from hasten.parallel.grid import Grid

NormOf = Callable[[Sequence[Tensor]], Tensor]


class Split(NamedTuple):
    """Along which dimension a tensor is divided.

    parts: equal blocks behind each other along `dim`, each divided by itself, as the query, key and value matrices of
        one packed projection.
    """

    dim: int
    parts: int = 1

    def share(self, whole: Tensor, ranks: Ranks) -> Tensor:
        """A copy of this rank's share. The dimension must be a multiple of parts · ranks.size."""
        parts = whole.unflatten(self.dim, (self.parts, -1))
        return parts.chunk(ranks.size, self.dim + 1)[ranks.rank].flatten(self.dim, self.dim + 1).clone()

    def whole(self, shares: Sequence[Tensor]) -> Tensor:
        """The whole tensor, from the shares of all ranks in rank order."""
        parts = [share.unflatten(self.dim, (self.parts, -1)) for share in shares]
        return torch.cat(parts, self.dim + 1).flatten(self.dim, self.dim + 1)


class Share(NamedTuple):
    """Marks a tensor of a state that is one rank's share. All ranks of the group hold one, and gather it together."""

    tensor: Tensor
    split: Split
    ranks: Ranks

    @property
    def shape(self) -> torch.Size:
        """Of the whole tensor."""
        sizes = [*self.tensor.shape]
        sizes[self.split.dim] *= self.ranks.size
        return torch.Size(sizes)

    @property
    def dtype(self) -> torch.dtype:
        return self.tensor.dtype

    def gathered(self, tensor: Tensor) -> Tensor:
        """The whole tensor. tensor: this rank's share, gathered before if it was a DTensor."""
        own = tensor.contiguous()
        shares = [torch.empty_like(own) for _ in range(self.ranks.size)]
        dist.all_gather(shares, own, group=self.ranks.group)
        return self.split.whole(shares)


class Owned(NamedTuple):
    """Marks a tensor of a state that one rank of a pipeline owns.

    tensor: on its owner the tensor, or its share; elsewhere any tensor of that device. owner: rank in the group.
    shape, dtype: of the whole tensor.
    """

    tensor: Tensor | Share
    owner: int
    shape: torch.Size
    dtype: torch.dtype
    ranks: Ranks

    @property
    def is_here(self) -> bool:
        return self.owner == self.ranks.rank

    def gathered(self, tensor: Tensor) -> Tensor:
        """The whole tensor, on all ranks. tensor: the whole one on its owner, any tensor of that device elsewhere."""
        found = tensor.contiguous() if self.is_here else tensor.new_empty(self.shape, dtype=self.dtype)
        dist.broadcast(found, group=self.ranks.group, group_src=self.owner)
        return found


@dataclass(frozen=True, kw_only=True, slots=True)
class Sharding:
    """Names are those of the model's state_dict; a tensor that no field names is held whole.

    in_parts: parameters are DTensors, by FSDP.
    splits: tensor-parallel parameters.
    partial: parameters held whole whose gradient each rank knows for its part of a sequence alone.
    owners: pipeline parameters -> the rank, in grid.stages, that owns them. shapes: of these, whole.
    buffer_owners: buffers -> the rank that updates them; the last rank updates all others.
    """

    grid: Grid = field(default_factory=Grid)
    in_parts: bool = False
    splits: Mapping[str, Split] = field(default_factory=dict[str, Split])
    partial: frozenset[str] = frozenset()
    owners: Mapping[str, int] = field(default_factory=dict[str, int])
    shapes: Mapping[str, torch.Size] = field(default_factory=dict[str, torch.Size])
    buffer_owners: Mapping[str, int] = field(default_factory=dict[str, int])

    @property
    def is_whole(self) -> bool:
        """Whether every rank holds every tensor whole."""
        return not (self.in_parts or self.is_tensor_or_pipeline_parallel)

    @property
    def is_tensor_or_pipeline_parallel(self) -> bool:
        """Whether some tensors are shares or belong to one stage, which torch's operations do not know. FSDP: False."""
        return bool(self.splits or self.owners)

    # ── in a step ───────────────────────────────────────────────────────────────────────────────────────────────────

    def complete(self, parameters: Iterable[tuple[str, Tensor]]) -> None:
        """Sum gradients, in place, of which each rank knows the part of its own sequence. Once a step, after the last
        microbatch."""
        found = [each for name, each in parameters if name in self.partial]
        if found:
            sum_gradients(found, self.grid.shares, torch.zeros(0, dtype=torch.float64, device=found[0].device))

    def norm(self, gradients: Mapping[str, Tensor], norm_of: NormOf, kind: float) -> Tensor:
        """The norm over the gradients of the whole model, each counted once. norm_of: of the tensors it is given."""
        if not self.owners:
            return self._norm_of_shares(gradients, norm_of, kind)
        own, common = (
            self._norm_of_shares(
                {name: each for name, each in gradients.items() if (name in self.owners) is owned}, norm_of, kind
            ).double()
            for owned in (True, False)
        )
        device = next((each.device for each in gradients.values()), own.device)
        stages = self.grid.stages
        all_stages = [torch.empty_like(own, device=device) for _ in range(stages.size)]
        dist.all_gather(all_stages, own.to(device), group=stages.group)
        return torch.linalg.vector_norm(torch.stack([common.to(device), *all_stages]), kind)

    def _norm_of_shares(self, gradients: Mapping[str, Tensor], norm_of: NormOf, kind: float) -> Tensor:
        if not self.splits:
            return norm_of([*gradients.values()])
        own = [each for name, each in gradients.items() if name in self.splits]
        common = [each for name, each in gradients.items() if name not in self.splits]
        norms = [norm_of(common)] if common or not own else []
        if own:
            mine = norm_of(own)
            all_shares = [torch.empty_like(mine) for _ in range(self.grid.shares.size)]
            dist.all_gather(all_shares, mine, group=self.grid.shares.group)
            norms += all_shares
        return torch.linalg.vector_norm(torch.stack(norms), kind)

    def anywhere(self, found: Tensor) -> Tensor:
        """The largest value among the ranks that hold one model together, in place."""
        return max_over_ranks(max_over_ranks(found, self.grid.stages), self.grid.shares)

    def on_any_stage(self, names: Sequence[str], device: torch.device) -> list[str]:
        """The names that the ranks of the pipeline give, of parameters that they own, each once."""
        own = [name for name in names if self.has(name)]
        return [*dict.fromkeys(gather_over_ranks(own, self.grid.stages, device))]

    # ── states ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def has(self, name: str) -> bool:
        """Whether this rank's stage holds the parameter."""
        stages = self.grid.stages
        return self.owners.get(name, stages.rank) == stages.rank

    def marked(self, named: Mapping[str, Any]) -> dict[str, Any]:
        """Tensors by name, with a Share or an Owned in place of each that this rank holds a share of, or nothing."""
        return {name: self.mark(name, each) for name, each in named.items()}

    def mark(self, name: str, tensor: Any) -> Any:
        if not isinstance(tensor, Tensor):
            return tensor
        split = self.splits.get(name)
        held = tensor if split is None else Share(tensor, split, self.grid.shares)
        if name not in self.owners:
            return held
        return Owned(held, self.owners[name], self.shapes[name], held.dtype, self.grid.stages)

    def share(self, name: str, whole: Tensor) -> Tensor:
        """What this rank holds of a whole tensor: a share, or an empty one; the tensor itself where it holds all."""
        split = self.splits.get(name)
        held = whole if split is None else split.share(whole, self.grid.shares)
        return held if self.has(name) or not held.dim() else held.new_empty((0, *held.shape[1:]))

    def optimizer_state_of_all_stages(
        self, states: Mapping[int, Mapping[str, Any]], names: Mapping[int, str], device: torch.device
    ) -> dict[int, dict[str, Any]]:
        """An optimizer's state by parameter number, with an Owned in place of each tensor of another stage.

        states: of this rank, with a Share in place of each share. names: of the numbered parameters. All ranks of the
        pipeline call it.
        """
        mine = {number for number in states if self.has(names.get(number, ""))}
        owned = {number for number in mine if names.get(number, "") in self.owners}
        kinds = {
            number: {
                key: (each.shape, each.dtype) if isinstance(each, Tensor | Share) else each
                for key, each in states[number].items()
            }
            for number in owned
        }
        found = {number: dict(states[number]) for number in mine - owned}
        nothing = torch.empty(0, device=device)
        for rank, theirs in enumerate(gather_over_ranks([kinds], self.grid.stages, device)):
            for number, kind_of in theirs.items():
                own = states[number] if rank == self.grid.stages.rank else {}
                found[number] = {
                    key: Owned(_on(device, own.get(key, nothing)), rank, kind[0], kind[1], self.grid.stages)
                    if _is_kind(kind)
                    else kind
                    for key, kind in kind_of.items()
                }
        return dict(sorted(found.items()))

    def settle_buffers(self, model: nn.Module, others: Sequence[Tensor], device: torch.device) -> None:
        """Give all ranks the buffers that are evaluated and saved, in place: those of the first data rank, and of each
        pipeline stage its own. others: tensors that follow the buffers, as averages of running statistics.

        Each step begins with the first rank's buffers, so its running statistics are right after any number of steps.
        A buffer that only some pipeline stages have, or have in another shape, stays.
        """
        if not self.owners:
            copy_from_first([*model.buffers(), *others], self.grid.all)
            return
        copy_from_first(model.buffers(), self.grid.data)
        stages, kinds = self.grid.stages, {name: (each.shape, each.dtype) for name, each in model.named_buffers()}
        everywhere = gather_over_ranks([kinds], stages, device)
        for name, buffer in sorted(model.named_buffers(), key=itemgetter(0)):
            if all(each.get(name) == kinds[name] for each in everywhere):
                copy_from_first([buffer], stages, source=self.buffer_owners.get(name, stages.size - 1))


def _on(device: torch.device, held: Tensor | Share) -> Tensor | Share:
    return held if isinstance(held, Share) else held.to(device)


def _is_kind(kind: Any) -> bool:
    return isinstance(kind, tuple) and len(kind) == 2 and isinstance(kind[0], torch.Size)


def own_class(module: nn.Module) -> type[nn.Module]:
    """The class that a module was made of: fully_shard gives it a class of its own."""
    kind, *bases = type(module).__mro__
    return bases[1] if bases[0].__name__ == "FSDPModule" else kind  # by name: loading FSDP takes a while
