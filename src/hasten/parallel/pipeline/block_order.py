"""In which order a model calls its blocks: by one forward pass of its loss."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from hasten.errors import Misconfigured

FIX = "remove `pipeline` from the plan, or let the model call its blocks one after the other"


def block_order(model: nn.Module, blocks: Sequence[str], call: Callable[[], Any]) -> list[str]:
    """The names of the blocks in the order of their calls. call: computes the loss.

    Raises Misconfigured where a block is not called exactly once, with a tensor of floats first, to return a tensor.
    """
    calls = list[str]()

    def before(name: str, block: nn.Module, given: tuple[Any, ...]) -> None:
        if not (given and isinstance(given[0], Tensor) and given[0].is_floating_point()):
            raise refused(f"{name} is not called with a tensor of floats as its first argument")
        calls.append(name)

    def after(name: str, block: nn.Module, given: Any, returned: Any) -> None:
        if not isinstance(returned, Tensor):
            raise refused(f"{name} returns {type(returned).__name__}, and not one tensor")

    modules = {name: model.get_submodule(name) for name in blocks}
    hooks = [
        *(each.register_forward_pre_hook(partial(before, name)) for name, each in modules.items()),
        *(each.register_forward_hook(partial(after, name)) for name, each in modules.items()),
    ]
    try:
        with torch.no_grad():
            call()
    finally:
        for hook in hooks:
            hook.remove()
    for name in blocks:
        if (count := calls.count(name)) != 1:
            raise refused(f"{name} is called {count} times in a forward pass")
    return calls


def refused(what: str, fix: str = FIX) -> Misconfigured:
    return Misconfigured(what, where="pipeline", fix=fix)
