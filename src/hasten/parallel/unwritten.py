"""What ranks gather of a layer in parts is a copy: what is written to it is lost with it, and so it is refused.

A teacher that follows the model, prototypes that are brought to length 1, weights that are cut: a loss or a forward
pass that moves parameters by itself would train something else than one process, silently. Buffers may be moved; a
layer that is not gathered at the time may be written to as well, for torch then writes to the parts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import count
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from hasten.errors import JobError

_VALUES_SEEN = 3  # calls of each layer in which values are compared as well: writing through .data leaves nothing else
_SHOWN = 3


class _Look(NamedTuple):
    tensor: Tensor
    version: int
    sums: Tensor | None

    def differs(self, tensor: Tensor) -> bool:
        """Whether it is the same tensor, and was written to."""
        if tensor is not self.tensor:
            return False
        return tensor._version != self.version or (self.sums is not None and not torch.equal(self.sums, _sums(tensor)))


class _Place(NamedTuple):
    """Where a layer keeps a parameter, and its name in the model."""

    holder: Mapping[str, Tensor | None]
    key: str
    name: str

    @property
    def gathered(self) -> Tensor | None:
        """None for a part, and for nothing."""
        held = self.holder.get(self.key)
        return None if isinstance(held, DTensor) else held


class Unwritten:
    """Raises JobError, in a call of a layer that ranks gather, where a parameter in it was written to.

    watch() each layer before torch puts its own hooks on it: these gather first, and free the copies last.
    """

    def __init__(self) -> None:
        self._seen = dict[int, _Look]()  # by the parameter that lay in a place

    def watch(self, layer: nn.Module, names: Mapping[nn.Module, str]) -> None:
        """names: of all modules in it, in what holds the model by that name."""
        places = [
            _Place(each._parameters, key, f"{names[each]}.{key}".removeprefix("model."))
            for each in layer.modules()
            for key in each._parameters
        ]
        calls = count()
        layer.register_forward_pre_hook(lambda *_: self._note(places, by_value=next(calls) < _VALUES_SEEN))
        layer.register_forward_hook(lambda *_: self._check(places))

    def _note(self, places: Sequence[_Place], *, by_value: bool) -> None:
        for place in places:
            if (held := place.gathered) is not None:
                self._seen[id(held)] = _Look(held, held._version, _sums(held) if by_value else None)

    def _check(self, places: Sequence[_Place]) -> None:
        gathered = [(place, held) for place in places if (held := place.gathered) is not None]
        looks = [(place, held, self._seen.get(id(held))) for place, held in gathered]
        written = [place.name for place, held, look in looks if look is not None and look.differs(held)]
        if written:
            what = f"{', '.join(written[:_SHOWN])}, of which each process holds a part: what it has gathered is a copy"
            fix = "leave `shard` out of the plan, or keep what the loss moves in buffers"
            raise JobError("loss", f"writes to {what}", fix)


def _sums(tensor: Tensor) -> Tensor:
    values = tensor.detach().double()
    return torch.stack([values.sum(), values.square().sum()]).nan_to_num()
