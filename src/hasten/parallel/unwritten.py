"""What ranks gather of a layer in parts is a copy: what is written to it is lost with it, and so it is refused.

A teacher that follows the model, prototypes that are brought to length 1, weights that are cut: a loss or a forward
pass that moves parameters by itself would train something else than one process, silently. Buffers may be moved; a
layer that is not gathered at the time may be written to as well, for torch then writes to the parts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import NamedTuple, NoReturn

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from hasten.errors import JobError
from hasten.parallel import differentiated_inside
from hasten.parallel.passes import FIRST, Passes
from hasten.parallel.replicate.fingerprint import fingerprint

_SHOWN = 3
_COUNT = attrgetter("_version")


class Place(NamedTuple):
    """Where a layer keeps a parameter, and its name in the model."""

    holder: Mapping[str, Tensor | None]
    key: str
    name: str

    @property
    def held(self) -> Tensor | None:
        return self.holder.get(self.key)

    @property
    def gathered(self) -> Tensor | None:
        """None for a part, and for nothing."""
        return None if isinstance(self.held, DTensor) else self.held


def places_in(root: nn.Module) -> dict[nn.Module, list[Place]]:
    """Of each module by itself. root: holds the model by that name."""
    return {
        each: [Place(each._parameters, key, f"{name}.{key}".removeprefix("model.")) for key in each._parameters]
        for name, each in root.named_modules()
    }


class Unwritten:
    """Raises JobError, in a call of a layer that ranks gather, where a parameter in it was written to.

    Made before torch puts its own hooks on the layer: these gather first, and free the copies last. torch uses one copy
    again and again; it counts what is written to a tensor, and to gather it anew does not count.
    """

    def __init__(
        self, layer: nn.Module, places: Sequence[Place], passes: Passes, others: Sequence[Unwritten] = ()
    ) -> None:
        """places: in the layer, and gathered with it. passes: in some of them values are compared as well. others: that
        may be gathered still when it ends."""
        self._layer, self._places, self._passes, self._others = layer, places, passes, others
        self._parts = list[tuple[Place, Tensor]]()
        self._calls, self._noted = 0, list[Place]()
        self._copies, self._written, self._values = list[Tensor](), list[int](), list[Tensor]()
        layer.register_forward_pre_hook(self._before)
        layer.register_forward_hook(self._behind)

    def watch_parts(self) -> None:
        """To be called behind torch's own hooks, when parameters are parts. Torch puts parts and copies into their
        places by itself: another parameter, which a loss puts there, would be lost."""
        self._parts = [(place, held) for place in self._places if isinstance(held := place.held, DTensor)]
        self._layer.register_forward_pre_hook(self._ahead, prepend=True)

    @property
    def is_freed(self) -> bool:
        """Whether parts are back in the places of what was gathered when it was last called."""
        return any(isinstance(place.held, DTensor) for place in self._noted)

    def check(self) -> None:
        """Raises JobError where a copy was written to since the last look, or is another parameter."""
        self._ahead()
        self._check_counts()

    def _check_counts(self) -> None:
        now = [*map(_COUNT, self._copies)]
        if now != self._written:
            self._refuse([one != other for one, other in zip(now, self._written, strict=True)])

    def _ahead(self, *_: object) -> None:
        copies = {place.name: copy for place, copy in zip(self._noted, self._copies, strict=True)}
        for place, part in self._parts:
            if (held := place.held) is not None and held is not part and held is not copies.get(place.name):
                self._raise([place.name], "puts another parameter into the place of")

    def _before(self, *_: object) -> None:
        self._check_counts()
        if not self._copies or self._noted[0].gathered is not self._copies[0]:
            self._noted = [place for place in self._places if place.gathered is not None]
            self._copies = [each for place in self._noted if (each := place.gathered) is not None]
            self._written = [*map(_COUNT, self._copies)]
        self._calls += 1
        looks = self._calls <= FIRST or (self._passes.under_way and self._passes.is_one_in_many)
        self._values = [*map(_values, self._copies)] if looks else []  # writing through .data leaves nothing else

    def _behind(self, *_: object) -> None:
        if self.is_freed:  # by a backward pass: torch's own hook comes last
            raise differentiated_inside.refused()
        self.check()
        self._refuse(
            [not torch.equal(one, _values(copy)) for one, copy in zip(self._values, self._copies, strict=False)]
        )
        for other in self._others:
            other.check()

    def _refuse(self, written: Sequence[bool]) -> None:
        names = [place.name for place, each in zip(self._noted, written, strict=False) if each]
        if names:
            self._raise(names, "writes to")

    @staticmethod
    def _raise(names: Sequence[str], does: str) -> NoReturn:
        what = f"{', '.join(names[:_SHOWN])}, of which each process holds a part: what it has gathered is a copy"
        fix = "leave `shard` out of the plan, or keep in buffers what the loss or a layer moves"
        raise JobError("loss", f"{does} {what}", fix)


def _values(tensor: Tensor) -> Tensor:
    return fingerprint(tensor).nan_to_num()  # of numbers that are too large to be squared
