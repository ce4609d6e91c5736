"""pieces.json: where the pieces of each tensor lie, in a checkpoint that several ranks saved in parts.

    {"run/model/weight": {"shape": [4, 8], "dtype": "F32", "pieces": [
        {"file": "parts-0000.safetensors", "key": "run/model/weight [0:2, 0:8]", "offsets": [0, 0], "shape": [2, 8]},
        {"file": "parts-0001.safetensors", "key": "run/model/weight [2:4, 0:8]", "offsets": [2, 0], "shape": [2, 8]}]}}

That the pieces fill the tensor, each element once, is checked when the table is written and when it is read.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass

from hasten.checkpoint.manifest import PIECES
from hasten.checkpoint.sealed_json import json_object
from hasten.errors import Damaged
from hasten.facts.record_reading import WrongValue, read_record

_LARGEST = 1 << 62  # of a size: sums of two fit into 64 bits


@dataclass(frozen=True, slots=True)
class Piece:
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
    return json.dumps({name: asdict(each) for name, each in tensors.items()}, separators=(",", ":"))


def from_json(content: bytes) -> dict[str, InPieces]:
    """Raises Damaged for anything that to_json never wrote; check_whole checks whether the pieces fill the tensors."""
    try:
        return {name: read_record(InPieces, fields) for name, fields in json_object(content, PIECES).items()}
    except WrongValue as error:
        raise Damaged(f"{PIECES}: {error.what}") from error


def check_whole(name: str, tensor: InPieces) -> None:
    """Raises Damaged unless every element is in exactly one piece: as many elements as the whole, and no overlap."""
    import numpy as np  # not needed to list checkpoints

    dimensions = len(tensor.shape)
    sizes = [tensor.shape, *(numbers for each in tensor.pieces for numbers in (each.offsets, each.shape))]
    if any(len(each) != dimensions or not all(0 <= size < _LARGEST for size in each) for each in sizes):
        raise Damaged(f"{PIECES}: a size of {name[:200]} is invalid")
    table = len(tensor.pieces), dimensions
    starts = np.array([each.offsets for each in tensor.pieces], dtype=np.int64).reshape(table)
    ends = starts + np.array([each.shape for each in tensor.pieces], dtype=np.int64).reshape(table)
    if (ends > np.array(tensor.shape, dtype=np.int64)).any():
        raise Damaged(f"{name}: a piece lies outside of the tensor")
    if sum(math.prod(each.shape) for each in tensor.pieces) != math.prod(tensor.shape):
        raise Damaged(f"{name}: its pieces do not have as many elements as the tensor")
    for number in range(1, len(starts)):
        before = (starts[:number] < ends[number]) & (starts[number] < ends[:number])
        if before.all(axis=1).any():
            raise Damaged(f"{name}: two of its pieces overlap")
