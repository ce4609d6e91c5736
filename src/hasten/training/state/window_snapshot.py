"""Buffers and declared state at the start of a window, so that it can be retried or undone after an exception.

A forward pass changes buffers, such as batch norm's statistics, and declared state, such as a teacher. Both are copied
at the start of every window. Random numbers need no copy: each window is seeded by its step. Parameters change only in
the update.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from hasten.training.state.declared_state import DeclaredState, copied

SMALL_BYTES = 64 << 10  # buffers up to this size are always copied; larger ones, such as masks, once they were written

Place = tuple[dict[str, Tensor | None], str]
"""A module's `_buffers`, and the name of one in it."""


@dataclass(slots=True)
class _Mark:
    """copies: of the buffers at `places`. versions: of the large buffers that are not copied."""

    step: int = 0
    places: list[Place] = field(default_factory=list[Place])
    copies: list[Tensor] = field(default_factory=list[Tensor])
    versions: list[int] = field(default_factory=list[int])
    declared: dict[str, Any] = field(default_factory=dict[str, Any])


class WindowSnapshot:
    """windows: how many are remembered: 2 where the device decides whether a step applied, as the host learns it during
    the next one."""

    def __init__(self, model: nn.Module, declared: DeclaredState, windows: int) -> None:
        self._declared, self._marks = declared, deque[_Mark](maxlen=windows)
        places = [(module._buffers, name) for module in model.modules() for name in module._buffers]
        dense = [place for place in places if (each := _at(place)) is not None and each.layout is torch.strided]
        self._copied = [place for place in dense if _size(place) <= SMALL_BYTES]
        self._large = [place for place in dense if _size(place) > SMALL_BYTES]
        self._versions = _versions(self._large)
        self.changed_buffer: str | None = None  # the name of one that a window changed, once one was seen

    def mark(self, step: int) -> None:
        """The window of this optimizer step begins."""
        self._copy_what_was_written()
        mark = self._marks.popleft() if len(self._marks) == self._marks.maxlen else _Mark()
        mark.step, mark.versions = step, self._versions
        if self._copied:
            self._copy(mark)
        if self._declared:
            mark.declared = copied(self._declared.state_dict())
        self._marks.append(mark)

    def back(self, step: int) -> bool:
        """Restore buffers and declared state as that step's window found them. False where that is not remembered, or a
        large buffer was written for the first time."""
        mark = self._of(step)
        if mark is None:
            return False
        self._restore(mark)
        if self._declared:
            self._declared.load_state_dict(mark.declared)
        return mark.versions == _versions(self._large)

    def heal(self, step: int) -> None:
        """Restore buffers where one became NaN or infinite in that step's window, which overflowed. Waits for the
        device."""
        mark = self._of(step)
        if mark is None or not any(map(_became_non_finite, map(_at, mark.places), mark.copies)):
            return
        self._restore(mark)
        for later in self._marks:
            if later.step > step:
                self._copy(later)

    def _copy_what_was_written(self) -> None:
        if not self._large or (now := _versions(self._large)) == self._versions:
            return
        written = [place for place, old, new in zip(self._large, self._versions, now, strict=True) if old != new]
        self._copied = [*self._copied, *written]
        self._large = [place for place in self._large if place not in written]
        self._versions = _versions(self._large)

    def _copy(self, mark: _Mark) -> None:
        present = [_at(place) for place in self._copied]
        places = [place for place, each in zip(self._copied, present, strict=True) if each is not None]
        tensors = [each for each in present if each is not None]
        with torch.no_grad():
            if [*map(_form, mark.copies)] != [*map(_form, tensors)]:
                mark.copies = [each.detach().clone() for each in tensors]
            else:
                torch._foreach_copy_(mark.copies, tensors)  # pyright: ignore[reportPrivateImportUsage]
        mark.places = places

    def _restore(self, mark: _Mark) -> None:
        for place, then in zip(mark.places, mark.copies, strict=True):
            now = _at(place)
            if now is None or _form(now) != _form(then):
                continue
            if self.changed_buffer is None and not torch.equal(now, then):
                self.changed_buffer = place[1]
            with torch.no_grad():
                now.copy_(then)

    def _of(self, step: int) -> _Mark | None:
        return next((mark for mark in self._marks if mark.step == step), None)


def _at(place: Place) -> Tensor | None:
    holder, name = place
    return holder.get(name)


def _became_non_finite(now: Tensor | None, then: Tensor) -> bool:
    if now is None or _form(now) != _form(then) or not now.is_floating_point():
        return False
    return bool((then.isfinite() & ~now.isfinite()).any())


def _size(place: Place) -> int:
    tensor = _at(place)
    return 0 if tensor is None else tensor.nbytes


def _form(tensor: Tensor) -> tuple[Any, ...]:
    return tensor.shape, tensor.dtype, tensor.device


def _versions(places: list[Place]) -> list[int]:
    return [-1 if (each := _at(place)) is None else each._version for place in places]
