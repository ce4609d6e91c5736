"""In which order a model calls its blocks, and how long each takes: by one forward pass of its loss."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from statistics import mean
from typing import Any

import torch
from torch import Tensor, nn

from hasten.errors import Misconfigured

FIX = "remove `pipeline` from the plan, or let the model call its blocks one after the other"


def block_order(
    model: nn.Module, blocks: Sequence[str], call: Callable[[], Any], device: torch.device
) -> tuple[list[str], list[float]]:
    """The names of the blocks in the order of their calls, and the seconds from each call to the next, or to the end of
    the loss. `call` computes the loss; it is called twice, the first time to warm up.

    Raises Misconfigured where a block is not called exactly once, with a tensor of floats first, to return a tensor.
    """
    calls, times = list[str](), list[float]()

    def now() -> float:
        if device.type == "cuda":
            torch.cuda.synchronize(device)  # queued kernels would be billed to the next block
        return time.perf_counter()

    def before(name: str, block: nn.Module, given: tuple[Any, ...]) -> None:
        if not (given and isinstance(given[0], Tensor) and given[0].is_floating_point()):
            raise refused(f"{name} is not called with a tensor of floats as its first argument")
        calls.append(name)
        times.append(now())

    def after(name: str, block: nn.Module, given: Any, returned: Any) -> None:
        if not isinstance(returned, Tensor):
            raise refused(f"{name} returns {type(returned).__name__}, and not one tensor")

    modules = {name: model.get_submodule(name) for name in blocks}
    hooks = [
        *(each.register_forward_pre_hook(partial(before, name)) for name, each in modules.items()),
        *(each.register_forward_hook(partial(after, name)) for name, each in modules.items()),
    ]
    try:
        for _ in range(2):
            calls.clear()
            times.clear()
            with torch.no_grad():
                call()
    finally:
        for hook in hooks:
            hook.remove()
    for name in blocks:
        if (count := calls.count(name)) != 1:
            raise refused(f"{name} is called {count} times in a forward pass")
    return calls, [stop - start for start, stop in pairwise([*times, now()])]


def costs_by_kind(seconds: Sequence[float], blocks: Sequence[nn.Module]) -> list[float]:
    """The mean over blocks of one class and one set of shapes, so that a model is cut alike each time that it is
    measured."""
    kinds = [(type(each), tuple(parameter.shape for parameter in each.parameters())) for each in blocks]
    costs = [mean([each for each, other in zip(seconds, kinds, strict=True) if other == kind]) for kind in kinds]
    return [*costs[:-1], max(costs[-1], seconds[-1])]  # what follows the last block is in its seconds


def refused(what: str, fix: str = FIX) -> Misconfigured:
    return Misconfigured(what, where="pipeline", fix=fix)
