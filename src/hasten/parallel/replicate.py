"""Every rank holds the whole model, sees its share of each global batch, and applies the same update.

Built on torch's own DistributedDataParallel, which sums gradients in buckets while the backward pass still runs. It
divides by the number of ranks; the step multiplies that back, because the true denominator is the global item count,
which ranks need not share equally.

A parameter may be used by some steps or by some ranks only, an expert of a mixture for instance, or never. So what each
step left unused is looked for: without that torch stops at the second step, or, where ranks differ, takes one bucket of
gradients for another. It costs a walk over the graph and a small reduction a step; where
everything is used, torch says once on its error stream that it was not needed.

Source: https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from itertools import chain
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from hasten.facts.ranks import Ranks
from hasten.parallel.loss_of_model import LossOfModel


def present_ranks() -> Ranks:
    """The ranks of torch's default process group; one rank where none was started."""
    if dist.is_available() and dist.is_initialized():
        return Ranks(dist.get_rank(), dist.get_world_size())
    return Ranks()


class Replica:
    """A loss function that sees to it that backward passes of what it returns reduce gradients over the ranks."""

    def __init__(self, loss: Callable[[nn.Module, Any], Any], model: nn.Module) -> None:
        self._parallel = DistributedDataParallel(LossOfModel(loss, model), find_unused_parameters=True)

    def __call__(self, model: nn.Module, batch: Any) -> Any:
        """`model` is the one that is replicated; there is no other."""
        differentiated, unseen = self._parallel(batch)
        return unseen.with_total(differentiated)

    def without_sync(self) -> AbstractContextManager[None]:
        """Keep a microbatch's gradients on this rank. Must enclose the forward pass too, which arms the reduction."""
        return self._parallel.no_sync()


def sum_over_ranks(tensor: Tensor, ranks: Ranks) -> Tensor:
    """The sum over all ranks, in a new tensor; the tensor itself on one rank."""
    if not ranks.many:
        return tensor
    total = tensor.clone()
    dist.all_reduce(total)
    return total


def gather_over_ranks(own: Iterable[Any], ranks: Ranks, device: torch.device) -> list[Any]:
    """What all ranks give, in their order, on each of them; of anything that can be pickled.

    device: the one that this rank trains on, through which some backends send. Waits for it, and for the other ranks.
    """
    if not ranks.many:
        return [*own]
    given: list[Any] = [None] * ranks.size
    # A backend of an accelerator takes its current device, which need not be the run's.
    with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
        dist.all_gather_object(given, [*own])
    return [*chain.from_iterable(given)]


def follow_the_leader(tensors: Iterable[Tensor], ranks: Ranks) -> None:
    """Give each tensor the values that it has on the first rank, in place."""
    if ranks.many:
        for tensor in tensors:
            values = tensor.contiguous()
            dist.broadcast(values, src=0)
            tensor.copy_(values)


def mean_over_ranks(tensors: list[Tensor], ranks: Ranks) -> None:
    """Replace each tensor by its mean over all ranks, in place."""
    if ranks.many:
        for tensor in tensors:
            dist.all_reduce(tensor)
            tensor.div_(ranks.size)
