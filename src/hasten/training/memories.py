"""What modules remember beside their tensors, such as how far a table is filled: whether that has changed.

Tensors whose module remembers that it filled them cannot be put back alone: it would not fill them again.

So the tensors of a module stay as they have become when it remembers something else than before in an attribute; in
those of its children, such as are of another size.

A float or a tensor in an attribute is mostly kept to be shown, such as the last loss, and a module that keeps one
remembers nothing by that. What lies deeper than in a list or a dictionary is not looked at.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from itertools import islice
from typing import Any

from torch import Tensor, nn

from hasten.training.buffer_copies import Stays

_NOT_MEMORIES = frozenset(vars(nn.Module())) | {"_size", "_keys"}  # the latter of containers of parameters
_MOST = 1000  # items that are looked at


class Memories:
    """Of modules, as they are now."""

    def __init__(self, modules: Iterable[nn.Module]) -> None:
        self._then = [(module, _of(module)) for module in modules]

    def changed(self) -> list[nn.Module]:
        """Those that remember something else by now."""
        return [module for module, then in self._then if _of(module) != then]

    def filled(self) -> Stays:
        """Which tensors stay, as the modules know by now that they have filled them."""
        changed = self.changed()
        themselves, all_below = _holders(changed), _holders(with_children(changed))
        return lambda place, has_grown: id(place.holder) in (all_below if has_grown else themselves)


def with_children(modules: Iterable[nn.Module]) -> list[nn.Module]:
    """Those too that came to be inside of them since, and the model's where a loss holds it so."""
    return [*dict.fromkeys(each for module in modules for each in module.modules())]


def _holders(modules: Iterable[nn.Module]) -> set[int]:
    return {id(holder) for module in modules for holder in (module._parameters, module._buffers)}


def _of(module: nn.Module) -> dict[str, Any]:
    return {name: _memory(value) for name, value in vars(module).items() if name not in _NOT_MEMORIES}


def _memory(value: Any) -> Any:
    if isinstance(value, dict):
        return len(value), {key: _item(item) for key, item in islice(value.items(), _MOST)}
    if isinstance(value, list | tuple | deque):
        return len(value), [*map(_item, islice(value, _MOST))]
    return (id(value), len(value)) if isinstance(value, set) else _item(value)


def _item(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | str):
        return value
    return type(value) if isinstance(value, float | Tensor) else id(value)
