"""What a forward pass moves without asking, as a window found it: random generators, buffers, and a loss's teacher.

An exception in the middle of a window leaves the parameters as the last step left them, but dropout has drawn and batch
norm has counted. back() makes that good, so that the state is again that of the last completed step. And where loss
scaling skips a step that overflowed in its forward pass, batch norm has taken infinities into averages that would keep
them for ever; heal() takes them out again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hasten.data.randomness import random_state, set_random_state
from hasten.facts.machine import free_memory, ranks_here
from hasten.training.buffer_copies import Copies
from hasten.training.moving_buffers import TRIAL_WINDOWS, Moving

if TYPE_CHECKING:
    from hasten.training.run import Run

_SPARE = 2.0  # of a teacher's size, that must be free: two windows may be remembered


@dataclass(slots=True)
class _Mark:
    step: int = 0
    random: dict[str, Any] = field(default_factory=dict)
    own: dict[str, Any] = field(default_factory=dict)
    buffers: Copies = field(default_factory=Copies)
    loss_parameters: Copies = field(default_factory=Copies)


class WindowStart:
    """windows: how many are remembered. Where the device decides on a window, the next begins before its answer."""

    def __init__(self, run: Run, windows: int) -> None:
        self._generators, self._device = run.built.generators, run.device
        self._marks = deque[_Mark](maxlen=windows)
        self._held = run.built.loss_parameters
        self._moving = Moving([module._buffers for module in run.built.buffers.modules])
        # Most teachers stand still, and one can be as large as all else together.
        self._moving_parameters = Moving(
            self._held.holders,
            apart=self._held.of_model(),
            may_stand=lambda tensor: True,
            trial_windows=TRIAL_WINDOWS if self._held.nbytes * _SPARE < free_memory() / ranks_here() else 0,
            each_window=False,
        )
        self._has_teacher = len(self._held.holders) > 0
        self.teacher_moves = False  # as far as that was seen when something was put back

    def mark(self, step: int) -> None:
        """The window of this optimizer step begins."""
        full = len(self._marks) == self._marks.maxlen
        mark = self._marks.popleft() if full else _Mark()
        mark.step, mark.random = step, random_state(self._device)
        if self._generators:
            mark.own = self._generators.states()
        self._moving.look()
        mark.buffers.take(self._moving.places, large_on_host=self._moving.on_trial)
        if self._has_teacher:
            self._moving_parameters.look()
            aside = self._moving_parameters.on_trial
            mark.loss_parameters.take(self._moving_parameters.places, large_on_host=aside)
        self._marks.append(mark)

    def back(self, step: int) -> bool:
        """Be as that optimizer step's window began. False where that is forgotten, or not all can be put back."""
        mark = self._of(step)
        if mark is None:
            return False
        unseen = self._moving_parameters.has_moved_unseen
        whole = not (unseen or self._moving.has_moved_unseen)
        set_random_state(mark.random, self._device)
        if mark.own:
            self._generators.go_on_from(mark.own)
        self._moving.drop_new()
        mark.buffers.put_back()
        self._moving_parameters.drop_new()
        self._held.fit_lists()
        self.teacher_moves |= mark.loss_parameters.put_back_what_changed() or unseen
        return whole

    @contextmanager
    def undisturbed(self) -> Iterator[None]:
        """Around an evaluation, which computes the same loss, and that has no mode: what it moves of its own comes back
        after it, as far as a window has moved it before."""
        of_loss = {id(module._buffers) for module in self._held.modules}
        buffers, parameters = Copies(), Copies()
        buffers.take([place for place in self._moving.places if id(place.holder) in of_loss], large_on_host=True)
        parameters.take(self._moving_parameters.affordable, large_on_host=True)
        try:
            yield
        finally:
            buffers.put_back()
            parameters.put_back_what_changed()

    def heal(self, step: int) -> None:
        """Let buffers be as that optimizer step's window began, where one was finite then and is not any more."""
        mark = self._of(step)
        if mark is None or not mark.buffers.are_poisoned():
            return
        mark.buffers.put_back()
        for later in self._marks:
            if later.step > step:
                later.buffers.take(mark.buffers.places)

    def _of(self, step: int) -> _Mark | None:
        return next((mark for mark in self._marks if mark.step == step), None)
