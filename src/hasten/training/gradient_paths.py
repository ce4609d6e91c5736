"""Where gradients of a tensor go, by the graph that autograd has made of it: nothing is differentiated for that."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from torch import Tensor


def nodes_behind(tensor: Tensor) -> set[Any]:
    """Those of autograd's that a backward pass from the tensor runs through."""
    found, ahead = set[Any](), [tensor.grad_fn]
    while ahead:
        node = ahead.pop()
        if node is not None and node not in found:
            found.add(node)
            ahead += [following for following, _ in node.next_functions]
    return found


def reached_from(tensor: Tensor, parameters: Collection[tuple[str, Tensor]]) -> list[str]:
    """The names of those that have a gradient of the tensor."""
    leaves = {id(node.variable) for node in nodes_behind(tensor) if hasattr(node, "variable")}
    return [name for name, each in parameters if id(each) in leaves]
