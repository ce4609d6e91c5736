"""Collectives over the ranks of a group; on one rank each of them does nothing.

Source: https://docs.pytorch.org/docs/stable/distributed.html#collective-functions
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import chain
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from hasten.facts.ranks import Ranks

_SMALL = 1 << 18  # elements; tensors of one dtype up to this size are joined into one message


def present_ranks() -> Ranks:
    """The ranks of torch's default process group; one rank where none was started."""
    if dist.is_available() and dist.is_initialized():
        return Ranks(dist.get_rank(), dist.get_world_size())
    return Ranks()


def sum_over_ranks(tensor: Tensor, ranks: Ranks) -> Tensor:
    """The sum over all ranks, in a new tensor; the tensor itself on one rank."""
    if not ranks.many:
        return tensor
    total = tensor.clone()
    dist.all_reduce(total, group=ranks.group)
    return total


def mean_over_ranks(tensors: list[Tensor], ranks: Ranks) -> None:
    """Replace each tensor by its mean over all ranks, in place."""
    if ranks.many:
        for tensor in tensors:
            dist.all_reduce(tensor, group=ranks.group)
            tensor.div_(ranks.size)


def max_over_ranks(tensor: Tensor, ranks: Ranks) -> Tensor:
    """The largest value that any rank has, in place."""
    if ranks.many:
        dist.all_reduce(tensor, dist.ReduceOp.MAX, group=ranks.group)
    return tensor


def gather_over_ranks(own: Iterable[Any], ranks: Ranks, device: torch.device) -> list[Any]:
    """The items of all ranks, in rank order, on every rank. Items can be anything that pickles.

    device: the one that this rank trains on; NCCL sends through it. Waits for the device and for all ranks.
    """
    if not ranks.many:
        return [*own]
    gathered: list[Any] = [None] * ranks.size
    with _current(device):
        dist.all_gather_object(gathered, [*own], group=ranks.group)
    return [*chain.from_iterable(gathered)]


def gather_in_turn(own: Sequence[Any], ranks: Ranks, device: torch.device) -> Iterator[Any]:
    """Like gather_over_ranks, with one item in memory at a time. All ranks must iterate to the end."""
    for source, items in enumerate(gather_over_ranks([len(own)], ranks, device)):
        for number in range(items):
            item = [own[number] if source == ranks.rank else None]
            if ranks.many:
                with _current(device):
                    dist.broadcast_object_list(item, group=ranks.group, group_src=source)
            yield item[0]


def _current(device: torch.device) -> AbstractContextManager[Any]:
    """NCCL uses the current device, which may differ from the one that the run trains on."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def copy_from_first(tensors: Iterable[Tensor], ranks: Ranks, *, source: int = 0) -> None:
    """Copy each tensor's values from the first rank (or `source`) to all ranks, in place."""
    if not ranks.many:
        return
    with torch.no_grad():
        for same in _messages(tensors):
            values = _joined(same)
            # As bytes, because backends do not support every dtype.
            dist.broadcast(values.view(torch.uint8), group=ranks.group, group_src=source)
            _copy_parts(values, same)


def sum_gradients(parameters: Sequence[Tensor], ranks: Ranks, numbers: Tensor) -> Tensor:
    """Sum the parameters' gradients over ranks, in place, and return the sum of `numbers` (float64, one dimension).

    A gradient that no rank has stays None: zeros would let weight decay change a parameter that the loss does not use.
    """
    reached = torch.tensor([each.grad is not None for each in parameters], dtype=torch.float64, device=numbers.device)
    counts = torch.cat([numbers, reached])
    messages = [*_messages(local_of(_gradient(each)) for each in parameters)]
    joined = [_joined(same) for same in messages]
    for work in [dist.all_reduce(each, group=ranks.group, async_op=True) for each in (counts, *joined)]:
        assert work is not None  # of a group that this rank belongs to
        work.wait()
    for same, values in zip(messages, joined, strict=True):
        _copy_parts(values, same)
    for parameter, anywhere in zip(parameters, counts[len(numbers) :].tolist(), strict=True):
        if not anywhere:
            parameter.grad = None
    return counts[: len(numbers)]


def local_of(tensor: Any) -> Tensor:
    """This rank's part of a DTensor; a plain tensor itself."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def _gradient(parameter: Tensor) -> Tensor:
    if parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter)
    return parameter.grad


def _messages(tensors: Iterable[Tensor]) -> Iterable[list[Tensor]]:
    """The tensors, in lists that are sent together: small ones of one dtype and device, and large ones alone."""
    found: dict[Any, list[Tensor]] = defaultdict(list)
    for each in tensors:
        alone = None if each.numel() <= _SMALL else len(found)
        found[each.dtype, each.device, alone].append(each)
    return found.values()


def _joined(tensors: list[Tensor]) -> Tensor:
    """Their elements in one dimension; of a single dense tensor without a copy."""
    flat = [each.detach().contiguous().flatten() for each in tensors]
    return torch.cat(flat) if len(flat) > 1 else flat[0]


def _copy_parts(joined: Tensor, tensors: list[Tensor]) -> None:
    for tensor, values in zip(tensors, joined.split([each.numel() for each in tensors]), strict=True):
        tensor.copy_(values.view_as(tensor))
