"""A state as a tree of plain values and tensors, in the form of two files: JSON and safetensors.

A state is nested dictionaries, lists, tuples, numbers, strings, None, tensors and NumPy arrays: what state_dict() of
modules and optimizers returns. Other mappings and sequences, such as an OrderedDict, are read back as plain ones. An
enumeration or a named tuple would lose its type, and is refused. Nothing is pickled: what the files cannot hold is
refused when it is saved.

JSON lacks tuples, keys that are numbers, infinities and tensors. Each of these is an object with a name of its own:

    {"tuple": [1, 2]}                       {"pairs": [[0, "a"]]}            a dictionary with other keys than strings
    {"float": "7ff0000000000000"}           an infinity or a NaN, by its bits: there are many of the latter
    {"tensor": "name", "order": [0, 2, 3, 1]}        {"array": "name"}       {"array": "name", "scalar": true}

Any other object is a dictionary with strings as keys. A tensor is named after the first place where it is found; a
tensor found again is stored once. `order` lists its dimensions by falling stride, so that a channels-last tensor comes
back as one. A tensor in parts is stored under each of its places, so that all ranks give it the same names.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any, NoReturn, cast

import numpy as np
import torch
from torch import Tensor

from hasten.checkpoint.safetensors_files import RESERVED, TYPES
from hasten.checkpoint.sharded.tensor_slabs import InParts
from hasten.errors import Damaged, Misconfigured

_MARKS = frozenset({"tuple", "pairs", "float", "tensor", "array"})
_DEEPEST = 100  # levels; a crafted file must not exhaust the stack


def flattened(state: Any) -> tuple[Any, dict[str, Tensor], dict[str, InParts]]:
    """The state as JSON can hold it, and its tensors by name: detached, dense, contiguous, and copied only if they are
    not contiguous yet; and by name those of which this rank holds parts.

    Raises Misconfigured, with the place, for a value that no file can hold.
    """
    flattening = _Flattening()
    return flattening.flat(state, "", 0), flattening.tensors, flattening.in_parts


def rebuilt(tree: Any, tensors: Mapping[str, Any]) -> Any:
    """The state that was `flattened`, with its tensors on the CPU. Raises Damaged for an invalid tree.

    tensors: by name; a rank_files.Pieced may stand for a tensor.
    """
    try:
        return _Rebuilding(tensors).built(tree, 0)
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError, IndexError, struct.error) as error:
        raise Damaged(f"the state is invalid: {type(error).__name__}: {error}") from error


class _Flattening:
    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}
        self.in_parts: dict[str, InParts] = {}
        self._met: dict[Any, tuple[str, Tensor]] = {}  # by place in memory, which the tensor keeps from being reused

    def flat(self, value: Any, place: str, depth: int) -> Any:
        if depth > _DEEPEST:
            _refuse(f"is more than {_DEEPEST} levels deep, or contains itself", place[:200], "flatten the state")
        if isinstance(value, Enum) or (isinstance(value, tuple) and hasattr(cast("object", value), "_fields")):
            _refuse(f"is a {type(value).__qualname__}, which would lose its type", place, "save its plain value")
        if value is None or isinstance(value, bool | int | str):
            return value
        if isinstance(value, Tensor):
            return self._tensor(value, place)
        if isinstance(value, InParts):
            return self._in_parts(value, place)
        if isinstance(value, np.ndarray | np.generic):  # before float, which np.float64 is too
            return self._array(value, place)
        if isinstance(value, float):
            return value if math.isfinite(value) else {"float": struct.pack(">d", value).hex()}
        if isinstance(value, Mapping):
            return self._mapping(cast("Mapping[Any, Any]", value), place, depth + 1)
        if isinstance(value, list | tuple):
            sequence = cast("Sequence[Any]", value)
            items = [self.flat(each, _below(place, number), depth + 1) for number, each in enumerate(sequence)]
            return items if isinstance(value, list) else {"tuple": items}
        fix = "a state holds numbers, strings, lists, dictionaries and tensors"
        return _refuse(f"is a {type(value).__qualname__}, which no checkpoint can store", place, fix)

    def _mapping(self, value: Mapping[Any, Any], place: str, depth: int) -> Any:
        # The key first: one that cannot be held may not even have a name.
        items = [
            [self.flat(key, place, depth), self.flat(each, _below(place, key), depth)] for key, each in value.items()
        ]
        plain = all(isinstance(key, str) for key, _ in items) and _MARKS.isdisjoint(key for key, _ in items)
        return dict(items) if plain else {"pairs": items}

    def _tensor(self, value: Tensor, place: str) -> Any:
        _check_tensor(value, place)
        value = value.detach().resolve_conj().resolve_neg()  # lazily conjugated or negated numbers are computed
        order = _memory_order(value)
        key = (value.device, value.dtype, value.data_ptr(), tuple(value.shape), value.stride())
        if key not in self._met:
            whole = (value if order is None else value.permute(order)).contiguous()
            self._met[key] = self._free_name(place), value
            self.tensors[self._met[key][0]] = whole
        name, _ = self._met[key]
        return {"tensor": name} if order is None else {"tensor": name, "order": order}

    def _in_parts(self, value: InParts, place: str) -> Any:
        _check_type(value.dtype, place)
        for slab in value.slabs:
            _check_tensor(slab.tensor, place)
        name = self._free_name(place)
        self.in_parts[name] = value
        return {"tensor": name}

    def _array(self, value: np.ndarray | np.generic, place: str) -> Any:
        try:
            tensor = torch.from_numpy(np.array(value, order="C"))
            _check_type(tensor.dtype, place)
        except (TypeError, ValueError):  # the latter for one of the other byte order
            what = f"is a NumPy array of {value.dtype.str}, which no checkpoint can store"
            _refuse(what, place, "save arrays of numbers")
        name = self._free_name(place)
        self.tensors[name] = tensor
        return {"array": name} if isinstance(value, np.ndarray) else {"array": name, "scalar": True}

    def _free_name(self, place: str) -> str:
        """The place, numbered where a key with a slash has taken that name."""
        # Half of a surrogate pair is a valid key in Python, and no valid text.
        name = first = (place or "state").encode("utf-8", "backslashreplace").decode()
        number = 1
        while name in self.tensors or name in self.in_parts or name == RESERVED:
            name, number = f"{first}#{number}", number + 1
        return name


def _refuse(what: str, place: str, fix: str) -> NoReturn:
    raise Misconfigured(what, where=place or "the state", fix=fix)


def _below(place: str, key: object) -> str:
    return f"{place}/{key}" if place else str(key)


def _check_tensor(value: Tensor, place: str) -> None:
    if value.layout is not torch.strided:
        what = f"is a tensor of the layout {value.layout}, which no checkpoint can store"
        _refuse(what, place, "save a dense tensor")
    _check_type(value.dtype, place)
    if value.numel() and not value.data_ptr():  # on the device meta, or of a wrapper class
        what = f"is a {type(value).__qualname__} on {value.device} without memory, which no checkpoint can store"
        _refuse(what, place, "save a plain torch.Tensor")


def _check_type(dtype: torch.dtype, place: str) -> None:
    if dtype not in TYPES:
        _refuse(f"is a tensor of {dtype}, which no checkpoint can store", place, "convert it to another dtype")


def _memory_order(value: Tensor) -> list[int] | None:
    """Its dimensions by falling stride; None for a contiguous tensor."""
    return None if value.is_contiguous() else sorted(range(value.dim()), key=lambda each: -value.stride(each))


class _Rebuilding:
    """A tensor that was found several times comes back as one."""

    def __init__(self, tensors: Mapping[str, Any]) -> None:
        self._tensors = tensors
        self._ordered: dict[tuple[str, tuple[int, ...]], Tensor] = {}

    def built(self, tree: Any, depth: int) -> Any:
        if depth > _DEEPEST:
            raise ValueError(f"it is nested more than {_DEEPEST} levels deep")
        if isinstance(tree, list):
            return [self.built(each, depth + 1) for each in cast("list[Any]", tree)]
        if isinstance(tree, float) and not math.isfinite(tree):
            raise ValueError(f"{tree} is not a JSON number")
        if not isinstance(tree, dict):
            return tree
        tree = cast("dict[str, Any]", tree)
        if _MARKS.isdisjoint(tree):
            return {key: self.built(each, depth + 1) for key, each in tree.items()}
        return self._named(tree, depth + 1)

    def _named(self, tree: dict[str, Any], depth: int) -> Any:
        """An object for what JSON lacks."""
        match tree:  # patterns allow further keys, so the keys are counted
            case {"tuple": list(items)} if len(tree) == 1:
                return tuple(self.built(each, depth) for each in items)
            case {"pairs": list(pairs)} if len(tree) == 1:
                return {self.built(key, depth): self.built(each, depth) for key, each in map(_pair, pairs)}
            case {"float": str(bits)} if len(tree) == 1:
                return _not_finite(bits)
            case {"array": str(name)} if len(tree) == 1:
                return self._tensors[name].numpy()
            case {"array": str(name), "scalar": True} if len(tree) == 2 and self._tensors[name].dim() == 0:
                return self._tensors[name].numpy()[()]
            case {"tensor": str(name)} if len(tree) == 1:
                return self._tensors[name]
            case {"tensor": str(name), "order": list(order)} if len(tree) == 2:
                return self._in_order(name, order)
        raise ValueError(f"there is no such object: {', '.join(tree)[:200]}")

    def _in_order(self, name: str, order: list[int]) -> Tensor:
        key = name, tuple(order)
        if key not in self._ordered:
            dimensions = [order.index(dimension) for dimension in range(len(order))]
            self._ordered[key] = self._tensors[name].permute(dimensions)
        return self._ordered[key]


def _pair(value: Any) -> tuple[Any, Any]:
    match value:
        case [key, each]:  # never a string of two letters
            return key, each
    raise ValueError("a pair is a list of two")


def _not_finite(bits: str) -> float:
    (value,) = struct.unpack(">d", bytes.fromhex(bits))
    if math.isfinite(value):
        raise ValueError(f"{value} is written as if it were not finite")
    return value
