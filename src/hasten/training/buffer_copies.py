"""What modules hold by name at an instant, such as buffers, and copies of what is in it: all can be put back.

So is where a tensor lies. A module may let one lie elsewhere, as `.data = …` does, and what is elsewhere can be another
tensor's: what was copied is never written there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import is_not
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hasten.training.checksums import checksum
from hasten.training.forms import can_lie_elsewhere, has_its_memory, is_sparse, place_in_memory, put_into
from hasten.training.non_finite import float_values, non_finite_weights

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


Stays = Callable[[Place, bool], bool]
"""Whether what lies there is left as it has become. Asked with whether it has grown or shrunk."""


class _Copied(NamedTuple):
    """view: of where a dense tensor lay; None of a sparse one."""

    tensor: Tensor
    view: Tensor | None
    copy: Tensor


class Copies:
    """Those of some places. What can_be_copied is not true of is put back as an object, whatever is in it by then: who
    chooses the places has to know of it (Moving.has_moved_unseen)."""

    def __init__(self) -> None:
        self.places: Sequence[Place] = ()
        self._holders: Sequence[Holder] = ()
        self._held: list[Holder] = []  # what each holder held
        self._tensors: list[Tensor | None] = []  # of the places
        self._copied: list[_Copied] = []  # dense ones, of which those of one type and device are copied together
        self._together: list[tuple[list[Tensor], list[Tensor]]] = []
        self._where: list[Any] = []
        self._bytes: list[int] = []  # of the storages of the views
        self._sparse: list[_Copied] = []

    def take(self, holders: Sequence[Holder], places: Sequence[Place], *, large_on_host: bool = False) -> None:
        """holders: what has come into one since does not stay when all is put back.

        places: in those, of which the content is copied.
        large_on_host: an accelerator's memory may have no room for all of them.
        """
        self._holders, self._held = holders, [*map(dict.copy, holders)]
        if not places and places is self.places:
            return  # most models hold none
        tensors = [place.holder.get(place.name) for place in places]
        is_known = places is self.places and not any(map(is_not, tensors, self._tensors))
        is_known = is_known and self._where == _where([each.tensor for each in self._copied])
        # What lies there now may be another's memory, which got the place of one that was freed.
        if not is_known or self._bytes != _bytes(self._copied):
            self.places, self._tensors = places, tensors
            self._copied = _rooms(tensors, large_on_host)
            self._together = _together(self._copied)
            self._where, self._bytes = _where([each.tensor for each in self._copied]), _bytes(self._copied)
        self._sparse = [
            _Copied(each, None, each.detach().clone()) for each in tensors if each is not None and is_sparse(each)
        ]
        with torch.no_grad():
            for copies, views in self._together:
                torch._foreach_copy_(copies, views)  # pyright: ignore[reportPrivateImportUsage]

    def put_back(self) -> None:
        """All, names too. It does not look written to torch's count: what stood still stands still."""
        for place, tensor in zip(self.places, self._tensors, strict=True):
            place.holder[place.name] = tensor
        for holder, then in zip(self._holders, self._held, strict=True):
            holder.clear()
            holder.update(then)
        for copied in (*self._copied, *self._sparse):
            _restore(*copied)

    def put_contents_back(self, stays: Stays) -> list[str]:
        """What was filled, cast or moved to another device stays, as its module may know that it was; so does what is
        new. The names of those of the places that stay so."""
        copied = {id(each.tensor): each for each in (*self._copied, *self._sparse)}
        left = list[str]()
        for place, then in zip(self.places, self._tensors, strict=True):
            now, known = place.tensor, copied.get(id(then))
            if now is then and known is None:  # who has chosen the place has to look
                continue
            if now is None or known is None or not _is_of_kind(now, known):
                left.append(place.name)
            elif stays(place, has_grown := now.shape != known.copy.shape):
                if has_grown or checksum(now) != checksum(known.copy):
                    left.append(place.name)
            else:
                place.holder[place.name] = then
                _restore(*known)
        return left

    def poisoned(self) -> list[Place]:
        """Those with a NaN or an infinity in it that was not there when it was copied. Waits for the device."""
        copied = {id(each.tensor): each.copy for each in (*self._copied, *self._sparse)}
        pairs = dict[str, tuple[Tensor, Tensor]]()
        for number, (place, held) in enumerate(zip(self.places, self._tensors, strict=True)):
            now, then = place.tensor, copied.get(id(held))
            if now is None or then is None or now.shape != then.shape:
                continue
            values, before = float_values(now), float_values(then)
            if values is not None and before is not None:
                pairs[str(number)] = values, before
        suspects = non_finite_weights((name, values) for name, (values, _) in pairs.items())
        return [self.places[int(name)] for name in suspects if _has_become_non_finite(*pairs[name])]


def _has_become_non_finite(now: Tensor, then: Tensor) -> bool:
    if now.shape != then.shape:  # of sparse ones, whose values are at other places by now
        return bool(then.isfinite().all())
    return bool((then.isfinite().to(now.device) & ~now.isfinite()).any())


def is_large(tensor: Tensor | None) -> bool:
    return tensor is not None and (tensor.layout is not torch.strided or tensor.nbytes > SMALL_BYTES)


def _rooms(tensors: Sequence[Tensor | None], large_on_host: bool) -> list[_Copied]:
    """Where copies of the dense ones among them can be put, each once."""
    dense = {id(each): each for each in tensors if each is not None and place_in_memory(each) is not None}
    return [
        _Copied(each, each.data, torch.empty_like(each, device="cpu" if large_on_host and is_large(each) else None))
        for each in dense.values()
    ]


def _together(copied: Sequence[_Copied]) -> list[tuple[list[Tensor], list[Tensor]]]:
    """Copies and views."""
    found: dict[tuple[torch.device, torch.device, torch.dtype], tuple[list[Tensor], list[Tensor]]] = {}
    for _, view, copy in copied:
        if view is not None:
            copies, views = found.setdefault((view.device, copy.device, view.dtype), ([], []))
            copies.append(copy)
            views.append(view)
    return [*found.values()]


def _is_of_kind(now: Tensor, known: _Copied) -> bool:
    return (now.dtype, now.device) == (known.copy.dtype, (known.copy if known.view is None else known.view).device)


def _where(tensors: Sequence[Tensor]) -> list[Any]:
    """Of dense ones, as place_in_memory, but for all in one go."""
    kinds = [tensor.dtype for tensor in tensors]
    return [*map(Tensor.data_ptr, tensors), *map(Tensor.size, tensors), *map(Tensor.stride, tensors), *kinds]


def _bytes(copied: Sequence[_Copied]) -> list[int]:
    return [each.view.untyped_storage().nbytes() for each in copied if each.view is not None]


def _restore(tensor: Tensor, view: Tensor | None, copy: Tensor) -> None:
    if view is not None and tensor.device != view.device:
        put_into(tensor, copy)  # a model may be moved in its first forward pass, and knows that it was
        return
    with torch.inference_mode(tensor.is_inference()), torch.no_grad():
        if not can_lie_elsewhere(copy):
            tensor.data.resize_as_sparse_(copy).copy_(copy)  # past torch's count
            return
        if view is None or not has_its_memory(view):
            tensor.data = copy.to(tensor.device, copy=True)
            return
        if place_in_memory(tensor) != place_in_memory(view):
            tensor.data = view
        _each_element_once(view, view).copy_(_each_element_once(copy, view))


def _each_element_once(tensor: Tensor, as_in: Tensor) -> Tensor:
    """Of an expanded tensor several elements are one, and cannot be written."""
    strides = as_in.stride()
    return tensor[tuple(slice(0, 1) if stride == 0 else slice(None) for stride in strides)] if 0 in strides else tensor
