"""Copies of tensors that modules hold, such as buffers: what was in them can be put back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import is_not
from typing import Any

import torch
from torch import Tensor

from hasten.training.checksums import checksum, has_memory
from hasten.training.non_finite import non_finite_weights
from hasten.training.same_form import form_of, have_same_form, is_expanded, put_into

SMALL_BYTES = 64 << 10


@dataclass(frozen=True, slots=True, eq=False)
class Place:
    """Where a module keeps a tensor. It may put another there at any time."""

    holder: dict[str, Tensor | None]
    name: str

    @property
    def tensor(self) -> Tensor | None:
        return self.holder.get(self.name)


class Copies:
    """The tensors of some places, and what was in them. Those without memory of their own are put back as objects."""

    def __init__(self) -> None:
        self.places: Sequence[Place] = ()
        self._tensors: list[Tensor | None] = []
        self._forms: list[
            Any
        ] = []  # of those: into a copy of another form, torch would cast or repeat what it is given
        self._pairs: list[tuple[list[Tensor], list[Tensor]]] = []  # each of one type and device: buffers, copies

    def take(self, places: Sequence[Place], *, large_on_host: bool = False) -> None:
        """large_on_host: an accelerator's memory may have no room for all of them."""
        if not places and places is self.places:
            return
        tensors = [place.holder.get(place.name) for place in places]
        forms = [None if tensor is None else form_of(tensor) for tensor in tensors]
        if places is not self.places or forms != self._forms or any(map(is_not, tensors, self._tensors)):
            self.places, self._tensors, self._forms = places, tensors, forms
            self._pairs = _paired(tensors, large_on_host)
        with torch.no_grad():
            for buffers, copies in self._pairs:
                torch._foreach_copy_(copies, buffers)  # pyright: ignore[reportPrivateImportUsage]

    def put_back(self) -> None:
        self._put_objects_back()
        for tensor, copy in self._each():
            # What nothing can be written into has most likely stood still.
            if not (tensor.is_inference() or is_expanded(tensor)) or _differ(tensor, copy):
                put_into(tensor, copy)

    def put_back_what_changed(self) -> bool:
        """So that what stands still does not look written. Whether anything had changed. Waits for the device."""
        changed = any(map(is_not, (place.tensor for place in self.places), self._tensors))
        self._put_objects_back()
        for tensor, copy in self._each():
            if _differ(tensor, copy):
                put_into(tensor, copy)
                changed = True
        return changed

    def _put_objects_back(self) -> None:
        for place, tensor in zip(self.places, self._tensors, strict=True):
            place.holder[place.name] = tensor

    def _each(self) -> Iterator[tuple[Tensor, Tensor]]:
        return (pair for pairs in self._pairs for pair in zip(*pairs, strict=True))

    def are_poisoned(self) -> bool:
        """Whether a NaN or an infinity is in a buffer, and was not when it was copied. Waits for the device."""
        copies = {id(each): copy for pair in self._pairs for each, copy in zip(*pair, strict=True)}
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


def _differ(tensor: Tensor, copy: Tensor) -> bool:
    """In any bit, or perhaps: not all have a checksum."""
    if not have_same_form(tensor, copy):
        return True
    present = checksum(tensor)
    return present is None or present != checksum(copy)


def _paired(tensors: Sequence[Tensor | None], large_on_host: bool) -> list[tuple[list[Tensor], list[Tensor]]]:
    alike: dict[tuple[torch.device, torch.dtype, bool], tuple[list[Tensor], list[Tensor]]] = {}
    for tensor in tensors:
        if tensor is None or not has_memory(tensor):
            continue
        aside = large_on_host and is_large(tensor)
        buffers, copies = alike.setdefault((tensor.device, tensor.dtype, aside), ([], []))
        buffers.append(tensor)
        copies.append(torch.empty_like(tensor, device="cpu" if aside else None))
    return [*alike.values()]
