"""What a forward pass moves without asking, as a window found it: random generators and buffers.

An exception in the middle of a window leaves the parameters as the last step left them, but dropout has drawn and batch
norm has counted. back() makes that good, so that the state is again that of the last completed step. And where loss
scaling skips a step that overflowed in its forward pass, batch norm has taken infinities into averages that would keep
them for ever; heal() takes them out again.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hasten.data.randomness import random_state, set_random_state
from hasten.training.buffer_copies import Copies
from hasten.training.moving_buffers import Moving

if TYPE_CHECKING:
    from hasten.training.run import Run


@dataclass(slots=True)
class _Mark:
    step: int = 0
    random: dict[str, Any] = field(default_factory=dict)
    own: dict[str, Any] = field(default_factory=dict)
    buffers: Copies = field(default_factory=Copies)


class WindowStart:
    """windows: how many are remembered. Where the device decides on a window, the next begins before its answer."""

    def __init__(self, run: Run, windows: int) -> None:
        self._generators, self._device = run.built.generators, run.device
        self._marks = deque[_Mark](maxlen=windows)
        self._moving = Moving(run.built.buffers.modules)

    def mark(self, step: int) -> None:
        """The window of this optimizer step begins."""
        full = len(self._marks) == self._marks.maxlen
        mark = self._marks.popleft() if full else _Mark()
        mark.step, mark.random = step, random_state(self._device)
        if self._generators:
            mark.own = self._generators.states()
        self._moving.look()
        mark.buffers.take(self._moving.places, large_on_host=self._moving.on_trial)
        self._marks.append(mark)

    def back(self, step: int) -> None:
        """Be as that optimizer step's window began; nothing where that is forgotten."""
        mark = self._of(step)
        if mark is None:
            return
        set_random_state(mark.random, self._device)
        if mark.own:
            self._generators.go_on_from(mark.own)
        self._moving.drop_new()
        mark.buffers.put_back()

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
