"""Every rank holds the whole model, sees its share of each global batch, and applies the same update.

Built on torch's own DistributedDataParallel, which sums gradients in buckets while the backward pass still runs. It
divides by the number of ranks; the step multiplies that back, because the true denominator is the global item count,
which ranks need not share equally.

A parameter may be used by some steps or by some ranks only, an expert of a mixture for instance, or never. So what each
step left unused is looked for: without that torch stops at the second step, or, where ranks differ, takes one bucket of
gradients for another. It costs a walk over the graph and a small reduction a step; where everything is used, torch says
once on its error stream that it was not needed. A static graph spares both, and is for who says that it is one.

Source: https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import chain
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
from torch.nn.parallel import DistributedDataParallel

from hasten.facts.ranks import ALONE, Ranks
from hasten.parallel.loss_of_model import LossOfModel
from hasten.parallel.options import ReplicaOptions

if TYPE_CHECKING:
    from hasten.parallel.replicate.low_rank import LowRank

_SMALL = 2**16  # bytes; a larger tensor is not copied to be sent


def present_ranks() -> Ranks:
    """The ranks of torch's default process group; one rank where none was started."""
    if dist.is_available() and dist.is_initialized():
        return Ranks(dist.get_rank(), dist.get_world_size())
    return Ranks()


class Replica:
    """A loss function that sees to it that backward passes of what it returns reduce gradients over the ranks."""

    def __init__(
        self,
        loss: Callable[[nn.Module, Any], Any],
        model: nn.Module,
        ranks: Ranks = ALONE,
        options: ReplicaOptions | None = None,
    ) -> None:
        """ranks: that hold a replica of this model; by themselves, all that there are."""
        options = options or ReplicaOptions()
        self._parallel = DistributedDataParallel(
            LossOfModel(loss, model),
            process_group=ranks.group,
            bucket_cap_mb=options.bucket_mb,  # pyright: ignore[reportArgumentType] a part of one works as well
            find_unused_parameters=not options.static_graph,
            static_graph=options.static_graph,
        )
        self._has_reduced = False
        self.low_rank: LowRank | None = None
        if options.compression == "bf16":
            self._parallel.register_comm_hook(ranks.group, _in_bf16)
        elif options.compression == "powersgd":
            from hasten.parallel.replicate.low_rank import LowRank  # few runs need it

            self.low_rank = LowRank(
                self._parallel, ranks.group, rank=options.rank, start=options.start, bucket_mb=options.bucket_mb
            )

    def __call__(self, model: nn.Module, batch: Any) -> Any:
        """`model` is the one that is replicated; there is no other."""
        differentiated, unseen = self._parallel(batch)
        return unseen.with_total(differentiated)

    def without_sync(self) -> AbstractContextManager[None]:
        """Keep a microbatch's gradients on this rank. Must enclose the forward pass too, which arms the reduction."""
        if self._parallel.static_graph and not self._has_reduced:
            self._has_reduced = True  # torch learns a static graph in its first backward pass, and must reduce there
            return nullcontext()
        return self._parallel.no_sync()


def _in_bf16(group, bucket):  # without types: torch refuses them as text, which they are here
    """torch's own, which it refuses by its name away from NCCL: gloo adds such numbers up as well."""
    return bf16_compress_hook(group, bucket)


def sum_over_ranks(tensor: Tensor, ranks: Ranks) -> Tensor:
    """The sum over all ranks, in a new tensor; the tensor itself on one rank."""
    if not ranks.many:
        return tensor
    total = tensor.clone()
    dist.all_reduce(total, group=ranks.group)
    return total


def gather_over_ranks(own: Iterable[Any], ranks: Ranks, device: torch.device) -> list[Any]:
    """What all ranks give, in their order, on each of them; of anything that can be pickled.

    device: the one that this rank trains on, through which some backends send. Waits for it, and for the other ranks.
    """
    if not ranks.many:
        return [*own]
    given: list[Any] = [None] * ranks.size
    with _current(device):
        dist.all_gather_object(given, [*own], group=ranks.group)
    return [*chain.from_iterable(given)]


def in_turn(own: Sequence[Any], ranks: Ranks, device: torch.device) -> Iterator[Any]:
    """What all ranks have, that of the first rank first, on each of them, one piece in memory at a time; of anything
    that can be pickled. All ranks take it to its end. device: as gather_over_ranks takes it."""
    for source, pieces in enumerate(gather_over_ranks([len(own)], ranks, device)):
        for number in range(pieces):
            piece = [own[number] if source == ranks.rank else None]
            if ranks.many:
                with _current(device):
                    dist.broadcast_object_list(piece, group=ranks.group, group_src=source)
            yield piece[0]


def _current(device: torch.device) -> AbstractContextManager[Any]:
    """A backend of an accelerator takes its current device, which need not be the run's."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def follow_the_leader(tensors: Iterable[Tensor], ranks: Ranks) -> None:
    """Give each tensor the values that it has on the first rank, in place; small ones of a kind in one message. An
    expanded one, which nothing can be written to, stays as it is."""
    if not ranks.many:
        return
    kinds: dict[Any, list[Tensor]] = defaultdict(list)
    for tensor in tensors:
        expanded = any(step == 0 and size > 1 for step, size in zip(tensor.stride(), tensor.shape, strict=True))
        if not expanded:
            alone = None if tensor.nbytes <= _SMALL else len(kinds)
            kinds[tensor.dtype, tensor.device, alone].append(tensor)
    for same in kinds.values():
        values = torch.cat([each.resolve_conj().flatten() for each in same]) if len(same) > 1 else _flat(same[0])
        dist.broadcast(values.view(torch.uint8), group=ranks.group, group_src=0)  # backends do not take every format
        for tensor, given in zip(same, values.split([each.numel() for each in same]), strict=True):
            tensor.copy_(given.view_as(tensor))


def _flat(tensor: Tensor) -> Tensor:
    """The tensor's own numbers where they lie in a row: a large one is not copied."""
    return tensor.detach().resolve_conj().contiguous().flatten()


def mean_over_ranks(tensors: list[Tensor], ranks: Ranks) -> None:
    """Replace each tensor by its mean over all ranks, in place."""
    if ranks.many:
        for tensor in tensors:
            dist.all_reduce(tensor, group=ranks.group)
            tensor.div_(ranks.size)
