"""A state, as a tree of plain values and tensors, and as two files can hold it: JSON and safetensors.

A state is built of dictionaries, lists, tuples, numbers, strings, None, tensors and NumPy arrays, nested as one likes:
what state_dict() of modules and optimizers gives. Other mappings and sequences of these kinds, such as an OrderedDict,
come back as plain ones. An enumeration and a named tuple would come back as less than they are, and are refused. JSON
has no tuple, no key that is a number, no infinity and no tensor, so each of these is written as an object that names
it:

    {"tuple": [1, 2]}                       {"pairs": [[0, "a"]]}            a dictionary with other keys than strings
    {"float": "7ff0000000000000"}           an infinity or a NaN, by its bits: there are many of the latter
    {"tensor": "name", "order": [0, 2, 3, 1]}        {"array": "name"}       {"array": "name", "scalar": true}

A plain object stands for a dictionary with strings as keys, other than these words. A tensor is named after the place
where it is met first; one that is met again is stored once. `order` lists its dimensions as memory holds them, largest
stride first, so that a channels-last tensor comes back as one. A tensor of which other processes have parts is named
after each of its places, so that all of them name it alike. Nothing here can run code: what the file cannot say is
refused when it is saved, not pickled.
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
from hasten.checkpoint.sharded.slabs import InParts
from hasten.errors import Damaged, Misconfigured

_MARKS = frozenset({"tuple", "pairs", "float", "tensor", "array"})
_DEEPEST = 100  # levels; a crafted file must not exhaust the stack
_LONGEST = 2000  # bits of a whole number; Python may be told to read no more than 640 digits


def flattened(state: Any) -> tuple[Any, dict[str, Tensor]]:
    """The state as JSON holds it, and its tensors by name: detached, dense and contiguous, sharing the memory of the
    state's own wherever that is so already.

    Raises Misconfigured, naming the place, for a value that no file can hold.
    """
    tree, tensors, _ = flattened_in_parts(state)
    return tree, tensors


def flattened_in_parts(state: Any) -> tuple[Any, dict[str, Tensor], dict[str, InParts]]:
    """The same, and by name those tensors of which this process has parts. Raises as flattened does."""
    flattening = _Flattening()
    return flattening.flat(state, "", 0), flattening.tensors, flattening.in_parts


def rebuilt(tree: Any, tensors: Mapping[str, Any]) -> Any:
    """The state that `flattened` took apart; tensors stay on the CPU. What stands in a tensor's place among those
    given, until it is put together, comes into the state as it is.

    Raises Damaged for a tree that makes no sense.
    """
    try:
        return _Rebuilding(tensors).built(tree, 0)
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError, IndexError, struct.error) as error:
        raise Damaged(f"the state makes no sense: {type(error).__name__}: {error}") from error


class _Flattening:
    """tensors: by name, those met so far. in_parts: those of which others have the rest. met: what a tensor is to
    memory -> its name, and itself: while it lives, no other can lie where it lies."""

    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}
        self.in_parts: dict[str, InParts] = {}
        self._met: dict[Any, tuple[str, Tensor]] = {}

    def flat(self, value: Any, place: str, depth: int) -> Any:
        if depth > _DEEPEST:
            _refuse(f"lies more than {_DEEPEST} levels deep, or holds itself", place[:200], "keep the state flatter")
        if isinstance(value, int) and value.bit_length() > _LONGEST:
            what = f"is a whole number of {value.bit_length()} bits, and no checkpoint can hold more than {_LONGEST}"
            _refuse(what, place, "keep large numbers as strings")
        if isinstance(value, Enum) or (isinstance(value, tuple) and hasattr(cast("object", value), "_fields")):
            _refuse(f"is a {type(value).__qualname__}, which would come back as less", place, "keep its plain value")
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
        fix = "keep numbers, strings, lists, dictionaries and tensors in the state; nothing else outlives a process"
        return _refuse(f"is a {type(value).__qualname__}, which no checkpoint can hold", place, fix)

    def _mapping(self, value: Mapping[Any, Any], place: str, depth: int) -> Any:
        # The key comes first: one that cannot be held may not even have a name.
        items = [
            [self.flat(key, place, depth), self.flat(each, _below(place, key), depth)] for key, each in value.items()
        ]
        plain = all(isinstance(key, str) for key, _ in items) and _MARKS.isdisjoint(key for key, _ in items)
        return dict(items) if plain else {"pairs": items}

    def _tensor(self, value: Tensor, place: str) -> Any:
        _check_tensor(value, place)
        value = value.detach().resolve_conj().resolve_neg()  # what is only marked as negated, written out
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
        except (TypeError, ValueError):  # the latter for one of the other byte order
            tensor = None
        if tensor is None or tensor.dtype not in TYPES or isinstance(value, np.ma.MaskedArray):
            kind = "masked NumPy array" if isinstance(value, np.ma.MaskedArray) else f"NumPy array of {value.dtype.str}"
            _refuse(f"is a {kind}, which no checkpoint can hold", place, "keep arrays of numbers in the state")
        name = self._free_name(place)
        self.tensors[name] = tensor
        return {"array": name} if isinstance(value, np.ndarray) else {"array": name, "scalar": True}

    def _free_name(self, place: str) -> str:
        """A key with a slash in it can lead to one that is taken."""
        # Half of a surrogate pair is a fine key in Python, and no text.
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
    if torch.nn.parameter.is_lazy(value):
        _refuse("is a parameter whose shape is not known yet", place, "let the model see a batch first")
    if value.layout is not torch.strided or value.is_nested or value.is_quantized:
        layout = "nested" if value.is_nested else "quantized" if value.is_quantized else str(value.layout)
        _refuse(f"is a tensor of the layout {layout}, which no checkpoint can hold", place, "keep dense tensors")
    _check_type(value.dtype, place)
    if value.numel() and not value.data_ptr():  # of the device meta, or a subclass that wraps others
        what = (
            f"is a {type(value).__qualname__} on {value.device} without memory of its own, which no checkpoint can hold"
        )
        _refuse(what, place, "keep tensors of torch's own class in the state")


def _check_type(dtype: torch.dtype, place: str) -> None:
    if dtype not in TYPES:
        _refuse(f"is a tensor of {dtype}, which no checkpoint can hold", place, "keep it in another type")


def _memory_order(value: Tensor) -> list[int] | None:
    """Its dimensions by falling stride; None for those of a contiguous tensor."""
    return None if value.is_contiguous() else sorted(range(value.dim()), key=lambda each: -value.stride(each))


class _Rebuilding:
    """Where one tensor was met several times, one comes back."""

    def __init__(self, tensors: Mapping[str, Any]) -> None:
        self._tensors = tensors
        self._ordered: dict[tuple[str, tuple[int, ...]], Tensor] = {}

    def built(self, tree: Any, depth: int) -> Any:
        if depth > _DEEPEST:
            raise ValueError(f"it is nested more than {_DEEPEST} levels deep")
        if isinstance(tree, list):
            return [self.built(each, depth + 1) for each in cast("list[Any]", tree)]
        if isinstance(tree, float) and not math.isfinite(tree):
            raise ValueError(f"{tree} stands where only numbers can")
        if not isinstance(tree, dict):
            return tree
        tree = cast("dict[str, Any]", tree)
        if _MARKS.isdisjoint(tree):
            return {key: self.built(each, depth + 1) for key, each in tree.items()}
        return self._named(tree, depth + 1)

    def _named(self, tree: dict[str, Any], depth: int) -> Any:
        """An object that names what JSON has not."""
        match tree:  # a pattern lets other keys stand beside its own, so they are counted
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
        case [key, each]:  # of a list; a string of two letters is none
            return key, each
    raise ValueError("a pair is a list of two")


def _not_finite(bits: str) -> float:
    (value,) = struct.unpack(">d", bytes.fromhex(bits))
    if math.isfinite(value):
        raise ValueError(f"{value} is written as what is no number")
    return value
