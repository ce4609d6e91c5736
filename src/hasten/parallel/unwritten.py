"""What ranks gather of a layer in parts is a copy: what is written to it is lost with it, and so it is refused.

A teacher that follows the model, prototypes that are brought to length 1, weights that are cut: a loss or a forward
pass that moves parameters by itself would train something else than one process, silently. Buffers may be moved; a
layer that is not gathered at the time may be written to as well, for torch then writes to the parts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import count
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from hasten.errors import JobError
from hasten.parallel.fingerprint import fingerprint

_VALUES_SEEN = 3  # calls of each layer in which values are compared as well: writing through .data leaves nothing else
_SHOWN = 3


class _Look(NamedTuple):
    """version: torch counts what is written to a tensor; gathering it anew does not count. values: None of none."""

    tensor: Tensor
    version: int
    values: Tensor | None

    def is_written(self) -> bool:
        return self.tensor._version != self.version

    def is_changed(self) -> bool:
        """Whether it holds other values, as far as that was looked at."""
        return self.values is not None and not torch.equal(self.values, _values(self.tensor))


class Place(NamedTuple):
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
        self._looks = dict[tuple[int, str], _Look]()  # by place

    def watch(self, layer: nn.Module, places: Sequence[Place], *, behind: Sequence[Place] = ()) -> None:
        """places: in the layer, and gathered with it. behind: of others, which may be gathered still when it ends."""
        calls = count()
        layer.register_forward_pre_hook(lambda *_: self._note(places, by_value=next(calls) < _VALUES_SEEN))
        layer.register_forward_hook(lambda *_: self._check([*places, *behind]))

    def _note(self, places: Sequence[Place], *, by_value: bool) -> None:
        _refuse(place for place, look in self._of(places) if look.is_written())  # since an earlier call
        for place in places:
            if (held := place.gathered) is not None:
                values = _values(held) if by_value else None
                self._looks[id(place.holder), place.key] = _Look(held, held._version, values)

    def _check(self, places: Sequence[Place]) -> None:
        _refuse(place for place, look in self._of(places) if look.is_written() or look.is_changed())

    def _of(self, places: Sequence[Place]) -> Iterator[tuple[Place, _Look]]:
        """How they were seen, of those that hold the same tensor."""
        for place in places:
            look = self._looks.get((id(place.holder), place.key))
            if look is not None and place.gathered is look.tensor:
                yield place, look


def _refuse(written: Iterable[Place]) -> None:
    names = [place.name for place in written]
    if names:
        what = f"{', '.join(names[:_SHOWN])}, of which each process holds a part: what it has gathered is a copy"
        fix = "leave `shard` out of the plan, or keep in buffers what the loss or a layer moves"
        raise JobError("loss", f"writes to {what}", fix)


def places_in(root: nn.Module) -> dict[nn.Module, list[Place]]:
    """Of each module by itself. root: holds the model by that name."""
    return {
        each: [Place(each._parameters, key, f"{name}.{key}".removeprefix("model.")) for key in each._parameters]
        for name, each in root.named_modules()
    }


def _values(tensor: Tensor) -> Tensor:
    return fingerprint(tensor).nan_to_num()
