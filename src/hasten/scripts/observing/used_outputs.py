"""Which calls of modules a loss is computed from.

The nodes that the outputs of a call have in the autograd graph are marked, and found again from the loss. A script can
call its model with gradients for another purpose, as an agent does that acts in an environment before it learns.

Source: https://docs.pytorch.org/docs/stable/generated/torch.autograd.graph.Node.metadata.html
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor

from hasten.facts.scripts.seen import Stack

_MARK = "hasten: called at"


def mark(outputs: Any, calls: Stack) -> bool:
    """Whether an output has a node. Its mark holds nothing alive."""
    nodes = [each.grad_fn for each in _tensors(outputs) if each.grad_fn is not None]
    for node in nodes:
        metadata: Any = node.metadata
        metadata.setdefault(_MARK, set()).add(calls)
    return bool(nodes)


def marks_behind(loss: Tensor) -> set[Stack]:
    found, known, ahead = set[Stack](), set[Any](), list[Any]([loss.grad_fn])
    while ahead:
        node = ahead.pop()
        if node is not None and node not in known:
            known.add(node)
            found |= node.metadata.get(_MARK, set[Stack]())
            ahead += [each for each, _ in node.next_functions]
    return found


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from _tensors(each)
    elif isinstance(value, tuple | list):
        for each in value:
            yield from _tensors(each)
