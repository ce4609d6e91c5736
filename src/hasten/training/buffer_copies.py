"""What modules hold by name at an instant, such as buffers, and copies of what is in it: all can be put back.

So is where a tensor lies. A module may let one lie elsewhere, as `.data = …` does, and what is elsewhere can be another
tensor's: what was copied is never written there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import is_not
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hasten.training.forms import is_sparse, lies, put_into
from hasten.training.non_finite import non_finite_weights

SMALL_BYTES = 64 << 10

Holder = dict[str, Tensor | None]
"""Where a module keeps tensors by name: its `_buffers`, or its `_parameters`."""


@dataclass(frozen=True, slots=True, eq=False)
class Place:
    """Where a module keeps a tensor. It may put another there at any time."""

    holder: Holder
    name: str

    @property
    def tensor(self) -> Tensor | None:
        return self.holder.get(self.name)


class _Alike(NamedTuple):
    """Dense tensors of one type and device, views of where they lay, and copies of what was there."""

    tensors: list[Tensor]
    memory: list[Tensor]
    copies: list[Tensor]


class Copies:
    """Those of some places. What can_be_copied is not true of is put back as an object, whatever is in it by then."""

    def __init__(self) -> None:
        self.places: Sequence[Place] = ()
        self._held: list[tuple[Holder, Holder]] = []  # a holder, and what it held
        self._tensors: list[Tensor | None] = []  # of the places
        self._lie: list[Any] = []
        self._dense: list[_Alike] = []
        self._sparse: list[tuple[Tensor, Tensor]] = []

    def take(self, holders: Sequence[Holder], places: Sequence[Place], *, large_on_host: bool = False) -> None:
        """holders: what has come into one since does not stay when all is put back.

        places: in those, of which the content is copied.
        large_on_host: an accelerator's memory may have no room for all of them.
        """
        self._held = [(holder, dict(holder)) for holder in holders]
        tensors = [place.holder.get(place.name) for place in places]
        lie = [None if tensor is None else lies(tensor) for tensor in tensors]
        if places is not self.places or lie != self._lie or any(map(is_not, tensors, self._tensors)):
            self.places, self._tensors, self._lie = places, tensors, lie
            self._dense = _grouped(tensors, lie, large_on_host)
        self._sparse = [(each, each.detach().clone()) for each in tensors if each is not None and is_sparse(each)]
        with torch.no_grad():
            for _, memory, copies in self._dense:
                torch._foreach_copy_(copies, memory)  # pyright: ignore[reportPrivateImportUsage]

    def put_back(self) -> None:
        """So that it does not look written to who counts that: to torch's, what stood still stands still."""
        for place, tensor in zip(self.places, self._tensors, strict=True):
            place.holder[place.name] = tensor
        for holder, then in self._held:
            holder.clear()
            holder.update(then)
        for tensor, memory, copy in self._each():
            if tensor.device != memory.device:  # a model may be moved in its first forward pass, and knows that it was
                put_into(tensor, copy)
                continue
            with torch.inference_mode(memory.is_inference()), torch.no_grad():
                if lies(tensor) != lies(memory):
                    tensor.data = memory
                _each_element_once(memory, memory).copy_(_each_element_once(copy, memory))
        for tensor, copy in self._sparse:
            tensor.data = copy.to(tensor.device, copy=True)

    def _each(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        return (each for alike in self._dense for each in zip(*alike, strict=True))

    def are_poisoned(self) -> bool:
        """Whether a NaN or an infinity is in a buffer, and was not when it was copied. Waits for the device."""
        copies = {id(tensor): copy for tensor, _, copy in self._each()}
        copies |= {id(tensor): copy for tensor, copy in self._sparse}
        now = {str(number): place.tensor for number, place in enumerate(self.places)}
        for number in non_finite_weights((name, tensor) for name, tensor in now.items() if tensor is not None):
            tensor, then = now[number], copies.get(id(self._tensors[int(number)]))
            if tensor is None or then is None or tensor.shape != then.shape:
                return True
            if bool((then.isfinite().to(tensor.device) & ~tensor.isfinite()).any()):
                return True
        return False


def is_large(tensor: Tensor | None) -> bool:
    return tensor is not None and (tensor.layout is not torch.strided or tensor.nbytes > SMALL_BYTES)


def _grouped(tensors: Sequence[Tensor | None], lie: Sequence[Any], large_on_host: bool) -> list[_Alike]:
    groups: dict[tuple[torch.device, torch.dtype, bool], _Alike] = {}
    for tensor, where in zip(tensors, lie, strict=True):
        if tensor is None or where is None:
            continue
        aside = large_on_host and is_large(tensor)
        alike = groups.setdefault((tensor.device, tensor.dtype, aside), _Alike([], [], []))
        alike.tensors.append(tensor)
        alike.memory.append(tensor.data)
        alike.copies.append(torch.empty_like(tensor, device="cpu" if aside else None))
    return [*groups.values()]


def _each_element_once(tensor: Tensor, as_in: Tensor) -> Tensor:
    """Of an expanded tensor several elements are one, and cannot be written."""
    strides = as_in.stride()
    return tensor[tuple(slice(0, 1) if stride == 0 else slice(None) for stride in strides)] if 0 in strides else tensor
