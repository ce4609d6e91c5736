"""Buffers and declared state at the start of a window, so that it can be retried or undone.

Random numbers need no copy: each window is seeded by its step. Parameters change only in the update.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from hasten.techniques.common.torch_internals import version_of
from hasten.training.batches.training_data import TrainingData
from hasten.training.state.declared_state import DeclaredState, copied
from hasten.training.state.torch_tensors import buffers_of
from hasten.training.step_parts.torch_ops import copy_all

SMALL_BYTES = 64 << 10  # buffers up to this size are always copied; larger ones, such as masks, once they were written

Place = tuple[dict[str, Tensor | None], str]
"""The buffers of a module, and the name of one of them."""


@dataclass(slots=True)
class StepRollback:
    """Restores what a step has changed before its update was found not to apply. step: its number, from 1 on.

    snapshot: None until take_snapshots(); a step that is refused then leaves buffers and declared state changed.
    """

    batches: TrainingData
    snapshot: WindowSnapshot | None = None

    def take_snapshots(self, model: nn.Module, declared: DeclaredState, *, deferred: bool) -> None:
        """From now on store how each window began. deferred: whether an update is judged during the next window."""
        if self.snapshot is None:
            self.snapshot = WindowSnapshot(model, declared, windows=2 if deferred else 1)

    def skipped(self, step: int) -> None:
        """Training continues. What overflowed in a forward pass must not stay in batch norm's statistics."""
        if self.snapshot is not None:
            self.snapshot.heal(step)

    def refused(self, step: int) -> str:
        """Training ends. Returns the samples of the step in words."""
        samples = self.batches.describe(step)
        if self.snapshot is not None:
            self.snapshot.back(step)
        self.batches.position.go_back_to(step)
        self.batches.present = self.batches.present._replace(last=True)
        return samples


@dataclass(slots=True)
class _Mark:
    """copies: of the buffers at `places`. versions: of the large buffers that are not copied."""

    step: int = 0
    places: list[Place] = field(default_factory=list[Place])
    copies: list[Tensor] = field(default_factory=list[Tensor])
    versions: list[int] = field(default_factory=list[int])
    declared: dict[str, Any] = field(default_factory=dict[str, Any])


class WindowSnapshot:
    """windows: how many are stored: 2 where the device decides whether a step applied, as the host learns it during the
    next one."""

    def __init__(self, model: nn.Module, declared: DeclaredState, windows: int) -> None:
        self._declared, self._marks = declared, deque[_Mark](maxlen=windows)
        self._copied, self._large = list[Place](), list[Place]()
        for holder in map(buffers_of, model.modules()):
            for name, each in holder.items():
                if each is not None and each.layout is torch.strided:
                    (self._copied if each.nbytes <= SMALL_BYTES else self._large).append((holder, name))
        self._versions = _versions(self._large)
        self.changed_buffer: str | None = None  # the name of one that a window changed, once one was found

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
        """Restore buffers and declared state as that step's window found them. False where that is not stored, or a
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
        mark.places = [place for place in self._copied if _at(place) is not None]
        tensors = [each for each in map(_at, mark.places) if each is not None]
        with torch.no_grad():
            if [*map(_form, mark.copies)] != [*map(_form, tensors)]:
                mark.copies = [each.detach().clone() for each in tensors]
            else:
                copy_all(mark.copies, tensors)

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


def _form(tensor: Tensor) -> tuple[Any, ...]:
    return tensor.shape, tensor.dtype, tensor.device


def _versions(places: list[Place]) -> list[int]:
    return [-1 if (each := _at(place)) is None else version_of(each) for place in places]
