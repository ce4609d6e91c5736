"""The averages of a model's floating-point buffers, such as batch norm's statistics.

A module may put another tensor in a buffer's place at any time. One of another form than its average begins a new one;
while there is none that could be averaged, it has no part. One that lies in several places has one average.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from hasten.training.buffer_copies import Copies, Place, Stays
from hasten.training.forms import form_of, have_same_form, is_expanded, place_in_memory
from hasten.training.non_finite import float_values, non_finite_weights


class Filled(NamedTuple):
    """written: of a buffer of the same form, which of its elements are not the average's."""

    place: Place
    content: Tensor
    written: Tensor | None

    def put_in(self) -> None:
        """Beside what the module has there of its own."""
        own = self.place.tensor
        if self.written is None or own is None or is_expanded(own):
            self.place.holder[self.place.name] = self.content
        else:
            own.data.copy_(torch.where(self.written, self.content, own.data))


class AveragedBuffers:
    """buffers: present ones, each once. averages: of those, in their order. by_place: the average of every place."""

    def __init__(self, model: nn.Module) -> None:
        present = [
            (Place(module._buffers, name), buffer)
            for module in model.modules()
            for name, buffer in module._buffers.items()
            if buffer is not None and buffer.is_floating_point()
        ]
        self._places = [place for place, _ in present]
        self.by_place = [buffer.detach().clone() for _, buffer in present]
        self.buffers, self.averages = list[Tensor](), list[Tensor]()
        self.modules = [*model.modules()]
        infinite = non_finite_weights(
            (str(number), values)
            for number, buffer in enumerate(self.by_place)
            if place_in_memory(buffer) is not None and (values := float_values(buffer)) is not None
        )
        self._infinite = set(map(int, infinite))  # from the start on, as a mask is
        self._seen: list[Any] | None = None  # the buffers, as the two lists were made for them

    def follow(self) -> bool:
        """Let the lists be of the buffers that are there now. Whether they are others than before."""
        present = [place.tensor for place in self._places]
        forms = [None if buffer is None else (id(buffer), *form_of(buffer)) for buffer in present]
        if forms == self._seen:
            return False
        self._seen = forms
        averages = dict[int, Tensor]()  # by the buffer's number
        for number, buffer in enumerate(present):
            if buffer is None or not buffer.is_floating_point() or is_expanded(buffer):
                continue
            if id(buffer) not in averages:
                averages[id(buffer)] = _average_for(buffer, self.by_place[number], averages.values())
            self.by_place[number] = averages[id(buffer)]
        numbered = {id(buffer): buffer for buffer in present if buffer is not None}
        self.buffers, self.averages = [numbered[number] for number in averages], [*averages.values()]
        return True

    def keep_infinities(self) -> None:
        """Of masks: the mean of two infinities is none."""
        for number in self._infinite:
            now, mean = self._places[number].tensor, self.by_place[number]
            if now is not None and any(now is each for each in self.buffers):
                mean.copy_(torch.where(now.isfinite(), mean, now))

    def copies(self) -> Copies:
        """Of all buffers, as they are now."""
        found = Copies()
        found.take([], self._places)
        return found

    def filled(self, stays: Stays) -> list[Filled]:
        """What modules have written while the average lay there, as a table for a longer batch.

        stays: whose module knows that it has, and would not do it again.
        """
        found = list[Filled]()
        for place, mean in zip(self._places, self.by_place, strict=True):
            now = place.tensor
            if now is None or not stays(place, has_grown := now.shape != mean.shape):
                continue
            if has_grown:
                found.append(Filled(place, now, None))
            elif now.layout is torch.strided and (now.dtype, now.device) == (mean.dtype, mean.device):
                written = ~torch.isclose(now, mean, rtol=0, atol=0, equal_nan=True)
                found.append(Filled(place, now.detach().clone(), written))
        return found

    def load(self, saved: Sequence[Tensor]) -> None:
        """saved: by_place, as it was then."""
        self.by_place = [each.to(mine.device, copy=True) for mine, each in zip(self.by_place, saved, strict=True)]
        self._seen = None


def _average_for(buffer: Tensor, kept: Tensor, others: Iterable[Tensor]) -> Tensor:
    """kept: at its place until now. others: that are in use, of which it was one while two buffers were one."""
    if not have_same_form(buffer, kept):
        return buffer.detach().clone()
    return kept.clone() if any(kept is each for each in others) else kept
