"""A model that one rank alone makes. The others make it without memory, on the device meta: they know what there is,
and of which shape, until its values come from the first.

Source: https://docs.pytorch.org/docs/stable/meta.html
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from hasten.errors import JobError
from hasten.facts.ranks import Ranks
from hasten.parallel.replicate.replicated import follow_the_leader, gather_over_ranks


def made_by_the_first(make: Callable[[], Any], ranks: Ranks, device: torch.device) -> Any:
    """What `make` gives; without memory on other ranks than the first.

    device: the one that this rank trains on. Raises JobError, on all ranks, where it cannot be made so.
    """
    made, reason = _without_memory(make) if not ranks.leads else (make(), "")
    reasons = gather_over_ranks([reason] if reason else [], ranks, device)
    if reasons:
        raise JobError("model", reasons[0], "leave `meta` out of the plan")
    return made


def _without_memory(make: Callable[[], Any]) -> tuple[Any, str]:
    """With the reason why it cannot be made so; empty where it can."""
    try:
        with torch.device("meta"):
            made = make()
    except (NotImplementedError, RuntimeError) as error:
        told = " ".join(f"{type(error).__name__}: {error}".split())
        return None, f"cannot be made without memory: {told}"
    for each in made.modules() if isinstance(made, nn.Module) else ():
        for name, kept in vars(each).items():
            if isinstance(kept, Tensor) and kept.is_meta:
                return made, f"keeps {name} in a {type(each).__name__}: a tensor that is no buffer cannot be sent on"
    return made, ""


def bring(module: nn.Module, device: torch.device, ranks: Ranks) -> None:
    """Let what the module holds be on the device, in place, with the values that it has on the first rank. What is in
    parts already stays."""
    made, found = dict[int, tuple[Tensor, Tensor]](), dict[int, Tensor]()
    for holder, name, tensor in _held(module):
        if tensor.is_meta:
            if id(tensor) not in made:  # one that several modules hold stays one
                made[id(tensor)] = tensor, _with_memory(tensor, device)
            holder[name] = made[id(tensor)][1]
        elif tensor.device != device:
            tensor.data = tensor.data.to(device)
        found[id(holder[name])] = holder[name]
    with torch.no_grad():
        follow_the_leader(found.values(), ranks)


def _held(module: nn.Module) -> Iterator[tuple[dict[str, Any], str, Tensor]]:
    """Each parameter and buffer that is no part, and where it is."""
    for each in module.modules():
        for holder in (each._parameters, each._buffers):
            for name, tensor in [*holder.items()]:
                if tensor is not None and not hasattr(tensor, "to_local"):
                    yield holder, name, tensor


def _with_memory(tensor: Tensor, device: torch.device) -> Tensor:
    found = torch.empty_like(tensor, device=device, requires_grad=False)
    if not isinstance(tensor, nn.Parameter):
        return found
    parameter = nn.Parameter(found, tensor.requires_grad)
    vars(parameter).update(vars(tensor))
    return parameter
