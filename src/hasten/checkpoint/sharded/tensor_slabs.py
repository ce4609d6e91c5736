"""Tensors of which this rank holds parts, as they are in a state that all ranks save together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor


class Slab(NamedTuple):
    """A part of a tensor, contiguous in every dimension. offsets: where it begins in the whole."""

    offsets: tuple[int, ...]
    tensor: Tensor


@dataclass(frozen=True, slots=True)
class InParts:
    """A tensor in parts, as it appears in a state.

    shape: of the whole.
    slabs: that this rank saves, none of them empty; without slabs that another rank saves.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    slabs: tuple[Slab, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Holding:
    """What this rank saves of all tensors in parts.

    tensors: by name.
    slabs: the memory to write, each once, by its key in the file.
    keys: the keys of each tensor's slabs, in their order, by the tensor's name.
    """

    tensors: Mapping[str, InParts]
    slabs: Mapping[str, Tensor]
    keys: Mapping[str, tuple[str, ...]]


def holding(tensors: Mapping[str, InParts]) -> Holding:
    """Memory that several tensors share, such as weights that are in a state twice, is written once."""
    slabs, keys, met = dict[str, Tensor](), dict[str, tuple[str, ...]](), dict[Any, str]()
    for name, tensor in tensors.items():
        found = list[str]()
        for slab in tensor.slabs:
            own = slab.tensor
            memory = own.device, own.dtype, own.data_ptr(), own.shape, own.stride()
            key = met.setdefault(memory, _key(name, slab))
            slabs[key] = own
            found.append(key)
        keys[name] = (*found,)
    return Holding(tensors=tensors, slabs=slabs, keys=keys)


def _key(name: str, slab: Slab) -> str:
    """Readable by people: `weight [0:2, 0:8]`."""
    ranges = (f"{start}:{start + size}" for start, size in zip(slab.offsets, slab.tensor.shape, strict=True))
    return f"{name} [{', '.join(ranges)}]"
