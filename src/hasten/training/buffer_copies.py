"""Copies of tensors that modules hold, such as buffers: what was in them can be put back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import is_not

import torch
from torch import Tensor

from hasten.training.checksums import has_memory
from hasten.training.non_finite import non_finite_weights
from hasten.training.same_form import have_same_form, put_into

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
        self._pairs: list[tuple[list[Tensor], list[Tensor]]] = []  # each of one type and device: buffers, copies

    def take(self, places: Sequence[Place], *, large_on_host: bool = False) -> None:
        """large_on_host: an accelerator's memory may have no room for all of them."""
        if not places and places is self.places:
            return
        tensors = [place.holder.get(place.name) for place in places]
        if places is not self.places or any(map(is_not, tensors, self._tensors)):
            self.places, self._tensors, self._pairs = places, tensors, _paired(tensors, large_on_host)
        with torch.no_grad():
            for buffers, copies in self._pairs:
                torch._foreach_copy_(copies, buffers)  # pyright: ignore[reportPrivateImportUsage]

    def put_back(self) -> bool:
        """Only what has changed is written. Whether anything had. Waits for the device."""
        moved = any(map(is_not, (place.tensor for place in self.places), self._tensors))
        for place, tensor in zip(self.places, self._tensors, strict=True):
            place.holder[place.name] = tensor
        for tensor, copy in (pair for pairs in self._pairs for pair in zip(*pairs, strict=True)):
            if not _are_equal(tensor, copy):
                put_into(tensor, copy)
                moved = True
        return moved

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


def _are_equal(tensor: Tensor, copy: Tensor) -> bool:
    """False of what is not known, and of a NaN."""
    if tensor.layout is not torch.strided or not have_same_form(tensor, copy):
        return False
    return torch.equal(tensor, copy.to(tensor.device))


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
