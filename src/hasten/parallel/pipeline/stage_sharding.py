"""Parameters of which one rank of a group has the whole, and the others nothing but the name.

What belongs to no stage of a pipeline alone, an embedding or a head, all of its ranks hold. So each gradient of those
is known everywhere, and counts once; each other one is known to its owner. Elsewhere a tensor's first dimension is 0,
and one of no dimensions keeps its number, which nobody reads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from hasten.errors import JobError
from hasten.facts.ranks import Ranks
from hasten.parallel.replicate.replicated import gather_over_ranks
from hasten.parallel.tensor.tensor_sharding import Divided, Share


class Owned(NamedTuple):
    """A tensor in a state that one rank has, and all ranks of its group are given together.

    tensor: on its owner the tensor, or its share of it; elsewhere any of that device. owner: its number in the group.
    shape: of the whole.
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
        """tensor: on its owner the whole; elsewhere any of that device."""
        found = tensor.contiguous() if self.is_here else tensor.new_empty(self.shape, dtype=self.dtype)
        dist.broadcast(found, group=self.ranks.group, group_src=self.owner)
        return found


@dataclass(frozen=True, slots=True)
class Owners:
    """owners: of parameters, by their names in the model's state: which of the ranks has them; all have what is not
    named. shapes: of these when they are whole. buffers: which rank moves them; the last one those that are not named.

    within: how several ranks share what one of these has; None where each has it whole.
    """

    owners: Mapping[str, int]
    shapes: Mapping[str, torch.Size]
    buffers: Mapping[str, int]
    ranks: Ranks
    within: Divided | None = None

    def has(self, name: str) -> bool:
        return self.owners.get(name, self.ranks.rank) == self.ranks.rank

    def free_others(self, model: nn.Module) -> None:
        """Give the memory of what other ranks have back. Parameters stay themselves, for optimizers number them; their
        first dimension becomes 0."""
        for name, parameter in model.named_parameters():
            if not self.has(name) and parameter.dim():
                parameter.data = parameter.data.new_empty((0, *parameter.shape[1:]))

    def marked(self, named: Mapping[str, Any]) -> dict[str, Any]:
        """The same, by the same names, with a mark in the place of each tensor that one rank has."""
        return {name: self.mark(name, each) for name, each in named.items()}

    def mark(self, name: str, tensor: Any) -> Any:
        held = tensor if self.within is None else self.within.mark(name, tensor)
        if name not in self.owners or not isinstance(held, Tensor | Share):
            return held
        return Owned(held, self.owners[name], self.shapes[name], held.dtype, self.ranks)

    def share(self, name: str, whole: Tensor) -> Tensor:
        """What this rank has of a tensor that was saved whole."""
        held = whole if self.within is None else self.within.share(name, whole)
        return held if self.has(name) or not held.dim() else held.new_empty((0, *held.shape[1:]))

    def everywhere(
        self, states: Mapping[int, Mapping[str, Any]], names: Mapping[int, str], device: torch.device
    ) -> dict[int, dict[str, Any]]:
        """An optimizer's state of all parameters, by number, with a mark on what one rank has; this one has `states`,
        with a mark on what it has a share of. names: of the numbered. All ranks of the group call it alike."""
        mine = {number for number in states if self.has(names.get(number, ""))}
        owned = {number for number in mine if names.get(number, "") in self.owners}
        told = {
            number: {
                key: (each.shape, each.dtype) if isinstance(each, Tensor | Share) else each
                for key, each in states[number].items()
            }
            for number in owned
        }
        found = {number: dict(states[number]) for number in mine - owned}
        nothing = torch.empty(0, device=device)
        for rank, theirs in enumerate(gather_over_ranks([told], self.ranks, device)):
            for number, kinds in theirs.items():
                own = states[number] if rank == self.ranks.rank else {}
                found[number] = {
                    key: Owned(_on(device, own.get(key, nothing)), rank, kind[0], kind[1], self.ranks)
                    if _is_kind(kind)
                    else kind
                    for key, kind in kinds.items()
                }
        return dict(sorted(found.items()))

    def settle_buffers(self, model: nn.Module, device: torch.device) -> None:
        """Give each buffer the values that it has on the rank that moves it, on all of them, in place. One that a
        forward pass has made, or has made larger, is its rank's own, as a table of positions is.

        Raises JobError, on all ranks, where a checkpoint keeps such a one.
        """
        kinds = {name: (each.shape, each.dtype, kept) for name, each, kept in _buffers_of(model)}
        told = gather_over_ranks([kinds], self.ranks, device)
        alike = {name for name, kind in told[0].items() if all(each.get(name) == kind for each in told)}
        apart = {name: kept for each in told for name, (*_, kept) in each.items() if name not in alike}
        if kept := [name for name in apart if apart[name]]:
            raise JobError(
                "model",
                f"makes or resizes {', '.join(kept)} in a run, which a checkpoint keeps, and not each stage does",
                "register them in __init__, or with persistent=False; or leave `pipeline` out of the plan",
            )
        with torch.no_grad():
            for name, buffer in sorted(model.named_buffers(), key=itemgetter(0)):
                if name in alike:
                    values = buffer.contiguous()
                    owner = self.buffers.get(name, self.ranks.size - 1)
                    # As bytes: some backends know no unsigned numbers.
                    dist.broadcast(values.view(-1).view(torch.uint8), group=self.ranks.group, group_src=owner)
                    buffer.copy_(values)

    def complete(self, parameters: Iterable[tuple[str, Tensor]]) -> None:
        """Sum gradients up, in place, that those know in part who share what a rank has; the pipeline has summed what
        several stages know."""
        if self.within is not None:
            self.within.complete(parameters)

    def norm(
        self, gradients: Mapping[str, Tensor], norm_of: Callable[[Sequence[Tensor]], Tensor], kind: float
    ) -> Tensor:
        """Of all gradients of the whole model, each counted once. norm_of: of those that it is given."""

        def of(some: Mapping[str, Tensor]) -> Tensor:
            found = norm_of([*some.values()]) if self.within is None else self.within.norm(some, norm_of, kind)
            return found.double()

        own = of({name: each for name, each in gradients.items() if name in self.owners})
        shared = of({name: each for name, each in gradients.items() if name not in self.owners})
        device = next((each.device for each in gradients.values()), own.device)
        theirs = [torch.empty_like(own, device=device) for _ in range(self.ranks.size)]
        dist.all_gather(theirs, own.to(device), group=self.ranks.group)
        return torch.linalg.vector_norm(torch.stack([shared.to(device), *theirs]), kind)

    def anywhere(self, found: Tensor) -> Tensor:
        """The largest of what each rank has found."""
        dist.all_reduce(found, dist.ReduceOp.MAX, group=self.ranks.group)
        return found if self.within is None else self.within.anywhere(found)


def _buffers_of(model: nn.Module) -> Iterator[tuple[str, Tensor, bool]]:
    """Name, buffer, and whether a checkpoint keeps it."""
    for path, module in model.named_modules():
        for name, each in module.named_buffers(path, recurse=False):
            yield name, each, name.rpartition(".")[2] not in module._non_persistent_buffers_set


def _on(device: torch.device, held: Tensor | Share) -> Tensor | Share:
    return held if isinstance(held, Share) else held.to(device)


def _is_kind(kind: Any) -> bool:
    return isinstance(kind, tuple) and len(kind) == 2 and isinstance(kind[0], torch.Size)
