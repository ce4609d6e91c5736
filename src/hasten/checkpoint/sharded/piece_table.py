"""pieces.json: where the pieces of each tensor lie, in a checkpoint that several ranks saved in parts.

    {"run/model/weight": {"shape": [4, 8], "dtype": "F32", "pieces": [
        ["parts-0000.safetensors", "run/model/weight [0:2, 0:8]", [0, 0], [2, 8]],
        ["parts-0001.safetensors", "run/model/weight [2:4, 0:8]", [2, 0], [2, 8]]]}}

A piece is a file, its key there, its offsets in the whole tensor, and its shape. That the pieces fill the tensor, each
element once, is checked when the table is written and when it is read.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

from hasten.checkpoint.manifest import PIECES
from hasten.checkpoint.sealed_json import json_object
from hasten.errors import Damaged

_MOST_DIMENSIONS = 64
_LARGEST = 1 << 62


class Piece(NamedTuple):
    """key: its name in the file. offsets: where it begins in the whole. shape: its own."""

    file: str
    key: str
    offsets: tuple[int, ...]
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class InPieces:
    """shape: of the whole tensor. dtype: by safetensors' name."""

    shape: tuple[int, ...]
    dtype: str
    pieces: tuple[Piece, ...]


def put_together(parts: Iterable[Mapping[str, InPieces]]) -> dict[str, InPieces]:
    """The tables of several ranks as one. Raises Damaged where they contradict each other, and as check_whole does."""
    found = dict[str, InPieces]()
    for part in parts:
        for name, own in part.items():
            before = found.get(name, InPieces(own.shape, own.dtype, ()))
            if (before.shape, before.dtype) != (own.shape, own.dtype):
                what = f"one rank has {before.dtype} {[*before.shape]}, another {own.dtype} {[*own.shape]}"
                raise Damaged(f"{name}: {what}")
            found[name] = InPieces(own.shape, own.dtype, before.pieces + own.pieces)
    for name, each in found.items():
        check_whole(name, each)
    return found


def to_json(tensors: Mapping[str, InPieces]) -> str:
    fields = {name: {"shape": each.shape, "dtype": each.dtype, "pieces": each.pieces} for name, each in tensors.items()}
    return json.dumps(fields, separators=(",", ":"))


def from_json(content: bytes) -> dict[str, InPieces]:
    """Raises Damaged for anything that to_json never wrote; check_whole checks whether the pieces fill the tensors."""
    return {name: _tensor(name, fields) for name, fields in json_object(content, PIECES).items()}


def check_whole(name: str, tensor: InPieces) -> None:
    """Raises Damaged unless every element is in exactly one piece: as many elements as the whole, and no overlap."""
    import numpy as np  # not needed to list checkpoints

    table = len(tensor.pieces), len(tensor.shape)
    starts = np.array([each.offsets for each in tensor.pieces], dtype=np.int64).reshape(table)
    ends = starts + np.array([each.shape for each in tensor.pieces], dtype=np.int64).reshape(table)
    if (ends > np.array(tensor.shape, dtype=np.int64)).any():
        raise Damaged(f"{name}: a piece lies outside of it")
    if sum(math.prod(each.shape) for each in tensor.pieces) != math.prod(tensor.shape):
        raise Damaged(f"{name}: its pieces have another number of elements than it has")
    for number in range(1, len(starts)):
        before = (starts[:number] < ends[number]) & (starts[number] < ends[:number])
        if before.all(axis=1).any():
            raise Damaged(f"{name}: two of its pieces overlap")


def _tensor(name: str, fields: Any) -> InPieces:
    match fields:
        case {"shape": list(shape), "dtype": str(dtype), "pieces": list(pieces)} if len(fields) == 3:
            whole = _sizes(name, shape)
            return InPieces(whole, dtype, tuple(_piece(name, each, len(whole)) for each in cast("list[Any]", pieces)))
    raise Damaged(f"{PIECES}: the entry of {name[:200]} makes no sense")


def _piece(name: str, fields: Any, dimensions: int) -> Piece:
    match fields:
        case [str(file), str(key), list(offsets), list(shape)] if len(offsets) == len(shape) == dimensions:
            return Piece(file, key, _sizes(name, offsets), _sizes(name, shape))
    raise Damaged(f"{PIECES}: a piece of {name[:200]} makes no sense")


def _sizes(name: str, numbers: list[Any]) -> tuple[int, ...]:
    """Whole numbers whose sums in pairs fit into 64 bits."""
    if all(type(each) is int and 0 <= each < _LARGEST for each in numbers) and len(numbers) <= _MOST_DIMENSIONS:
        return (*numbers,)
    raise Damaged(f"{PIECES}: a size of {name[:200]} makes no sense")
