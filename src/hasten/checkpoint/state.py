"""A state, as a tree of plain values and tensors, and as two files can hold it: JSON and safetensors.

A state is built of dictionaries, lists, tuples, numbers, strings, None, tensors and NumPy arrays, nested as one likes:
what state_dict() of modules and optimizers gives. JSON has no tuple, no key that is a number, no infinity and no
tensor, so each of these is written as an object with one entry that names it:

    {"tuple": [1, 2]}                       {"pairs": [[0, "a"]]}            a dictionary with other keys than strings
    {"float": "nan"}                        {"tensor": "name", "order": [0, 2, 3, 1]}, {"array": "name"}

A plain object stands for a dictionary with strings as keys, other than these words. A tensor is named after the place
where it is met first; one that is met again is stored once. `order` lists its dimensions as memory holds them, largest
stride first, so that a channels-last tensor comes back as one. Nothing here can run code: what the file cannot say is
refused when it is saved, not pickled.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from hasten.errors import Misconfigured, StorageFailed

_MARKS = frozenset({"tuple", "pairs", "float", "tensor", "array"})
_DEEPEST = 100  # levels; a crafted file must not exhaust the stack


def flattened(state: Any) -> tuple[Any, dict[str, Tensor]]:
    """The state as JSON holds it, and its tensors by name: detached, dense and contiguous, sharing the memory of the
    state's own wherever that is so already.

    Raises Misconfigured, naming the place, for a value that no file can hold.
    """
    tensors: dict[str, Tensor] = {}
    return _flat(state, "", tensors, {}), tensors


def rebuilt(tree: Any, tensors: Mapping[str, Tensor]) -> Any:
    """The state that `flattened` took apart; tensors stay on the CPU. Raises StorageFailed for a tree it never made."""
    try:
        return _built(tree, tensors, 0)
    except (KeyError, TypeError, ValueError, RuntimeError, IndexError) as error:
        raise StorageFailed(f"the state makes no sense: {type(error).__name__}: {error}") from error


def _flat(value: Any, place: str, tensors: dict[str, Tensor], met: dict[Any, str]) -> Any:
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"float": str(value)}
    if isinstance(value, Tensor):
        return _flat_tensor(value, place, tensors, met)
    if isinstance(value, np.ndarray | np.generic):
        return _flat_array(value, place, tensors)
    if isinstance(value, Mapping):
        items = cast("Mapping[Any, Any]", value).items()
        if all(isinstance(key, str) for key, _ in items) and not any(key in _MARKS for key, _ in items):
            return {key: _flat(each, _below(place, key), tensors, met) for key, each in items}
        return {
            "pairs": [
                [_flat(key, place, tensors, met), _flat(each, _below(place, key), tensors, met)] for key, each in items
            ]
        }
    if isinstance(value, list | tuple):
        sequence = cast("Sequence[Any]", value)
        items = [_flat(each, _below(place, number), tensors, met) for number, each in enumerate(sequence)]
        return items if isinstance(value, list) else {"tuple": items}
    raise Misconfigured(
        f"is a {type(value).__qualname__}, which no checkpoint can hold",
        where=place or "the state",
        fix="keep numbers, strings, lists, dictionaries and tensors in the state; nothing else outlives a process",
    )


def _below(place: str, key: object) -> str:
    return f"{place}/{key}" if place else str(key)


def _flat_tensor(value: Tensor, place: str, tensors: dict[str, Tensor], met: dict[Any, str]) -> Any:
    value = value.detach()
    if value.layout is not torch.strided or value.is_quantized:
        raise Misconfigured(
            f"is a tensor of the layout {value.layout}, which no checkpoint can hold",
            where=place or "the state",
            fix="keep dense tensors in the state",
        )
    key = (value.device, value.dtype, value.data_ptr(), tuple(value.shape), value.stride()) if value.numel() else place
    order = _memory_order(value)
    if key not in met:
        met[key] = name = _free_name(place or "state", tensors)
        tensors[name] = (value if order is None else value.permute(order)).contiguous()
    return {"tensor": met[key]} if order is None else {"tensor": met[key], "order": order}


def _free_name(place: str, tensors: Mapping[str, Tensor]) -> str:
    """A key with a slash in it can lead to a name that is taken."""
    name, number = place, 1
    while name in tensors:
        name, number = f"{place}#{number}", number + 1
    return name


def _memory_order(value: Tensor) -> list[int] | None:
    """Its dimensions by falling stride; None for those of a contiguous tensor."""
    if value.is_contiguous():
        return None
    order = sorted(range(value.dim()), key=lambda each: -value.stride(each))
    return order if value.permute(order).is_contiguous() else None


def _flat_array(value: np.ndarray | np.generic, place: str, tensors: dict[str, Tensor]) -> Any:
    array = np.ascontiguousarray(value)  # of at least one dimension
    try:
        tensor = torch.from_numpy(array.copy())
    except TypeError:
        raise Misconfigured(
            f"is a NumPy array of {array.dtype}, which no checkpoint can hold",
            where=place or "the state",
            fix="keep arrays of numbers in the state",
        ) from None
    name = _free_name(place or "state", tensors)
    tensors[name] = tensor
    return {"array": name} if np.ndim(value) else {"array": name, "scalar": True}


def _built(tree: Any, tensors: Mapping[str, Tensor], depth: int) -> Any:
    if depth > _DEEPEST:
        raise ValueError(f"it is nested more than {_DEEPEST} levels deep")
    if isinstance(tree, list):
        return [_built(each, tensors, depth + 1) for each in cast("list[Any]", tree)]
    if not isinstance(tree, dict):
        return tree
    tree = cast("dict[str, Any]", tree)
    mark = next(iter(tree), None)
    if mark not in _MARKS:
        return {key: _built(each, tensors, depth + 1) for key, each in tree.items()}
    if mark == "tuple":
        return tuple(_built(each, tensors, depth + 1) for each in tree[mark])
    if mark == "pairs":
        return {_built(key, tensors, depth + 1): _built(each, tensors, depth + 1) for key, each in tree[mark]}
    if mark == "float":
        return float(tree[mark])
    tensor = tensors[tree[mark]]
    if mark == "array":
        return tensor.numpy()[0] if tree.get("scalar") else tensor.numpy()
    order = tree.get("order")
    if order is None:
        return tensor
    return tensor.permute([order.index(dimension) for dimension in range(len(order))])
