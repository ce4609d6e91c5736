"""A model that the first rank alone initialises. The others build it on the meta device and receive its values.

Source: https://docs.pytorch.org/docs/stable/meta.html
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from hasten.errors import JobError
from hasten.facts.ranks import Ranks
from hasten.parallel.collectives import copy_from_first, gather_over_ranks


def built_by_first(make: Callable[[], Any], ranks: Ranks, device: torch.device) -> Any:
    """What `make` returns; on the meta device on all ranks but the first.

    device: the one that this rank trains on. Raises JobError, on all ranks, for a model that cannot be built so.
    """
    made, reason = (make(), "") if ranks.leads else _on_meta(make)
    reasons = gather_over_ranks([reason] if reason else [], ranks, device)
    if reasons:
        raise JobError("model", reasons[0], "remove `meta` from the plan")
    return made


def _on_meta(make: Callable[[], Any]) -> tuple[Any, str]:
    """With the reason why it cannot be built so; empty where it can."""
    try:
        with torch.device("meta"):
            made = make()
    except (NotImplementedError, RuntimeError) as error:
        return None, f"cannot be built on the meta device: {' '.join(f'{type(error).__name__}: {error}'.split())}"
    for module in made.modules() if isinstance(made, nn.Module) else ():
        for name, value in vars(module).items():
            if isinstance(value, Tensor) and value.is_meta:
                return made, f"{type(module).__name__}.{name} is a tensor but not a buffer, so other processes lack it"
    return made, ""


def materialize(module: nn.Module, device: torch.device, ranks: Ranks) -> None:
    """Move the module's parameters and buffers to the device, in place, with the first rank's values. Tied tensors stay
    tied. DTensors stay as they are."""
    made, found = dict[Tensor, Tensor](), dict[Tensor, None]()
    for owner, name, tensor in [*_plain_tensors(module)]:
        if tensor.is_meta:
            if tensor not in made:
                made[tensor] = _allocated(tensor, device)
            setattr(owner, name, made[tensor])
        else:
            tensor.data = tensor.data.to(device)
        found[made.get(tensor, tensor)] = None
    copy_from_first(found, ranks)


def _plain_tensors(module: nn.Module) -> Iterator[tuple[nn.Module, str, Tensor]]:
    """Each parameter and buffer that is no DTensor, with the module that owns it and its name there."""
    for owner in module.modules():
        parameters = owner.named_parameters(recurse=False, remove_duplicate=False)
        for name, tensor in (*parameters, *owner.named_buffers(recurse=False, remove_duplicate=False)):
            if not hasattr(tensor, "to_local"):
                yield owner, name, tensor


def _allocated(tensor: Tensor, device: torch.device) -> Tensor:
    found = torch.empty_like(tensor, device=device, requires_grad=False)
    if not isinstance(tensor, nn.Parameter):
        return found
    parameter = nn.Parameter(found, tensor.requires_grad)
    vars(parameter).update(vars(tensor))
    return parameter
