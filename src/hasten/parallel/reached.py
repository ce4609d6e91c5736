"""Which parameters a tensor was computed from, as its graph tells: those that a backward pass from it would reach."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor, nn


def reached(outputs: Iterable[Any], parameters: Mapping[str, nn.Parameter], behind: Iterable[Tensor] = ()) -> set[str]:
    """Names of the parameters. outputs: tensors, or anything else, which reaches none. behind: tensors that are not
    gone beyond. What is recomputed by torch's reentrant checkpoint has no graph yet, and is not found."""
    names = {id(each): name for name, each in parameters.items()}
    met = {each.grad_fn for each in behind}
    to_see: list[Any] = [each.grad_fn for each in outputs if isinstance(each, Tensor)]
    found = {names[id(each)] for each in outputs if id(each) in names}
    while to_see:
        node = to_see.pop()
        if node is None or node in met:
            continue
        met.add(node)
        leaf = getattr(node, "variable", None)  # of a node that accumulates
        if id(leaf) in names:
            found.add(names[id(leaf)])
        to_see += [function for function, _ in node.next_functions]
    return found
