"""What a forward pass moves without asking, as a window found it: random generators, buffers, and a loss's teacher.

An exception in the middle of a window leaves the parameters as the last step left them, but dropout has drawn and batch
norm has counted. back() makes that good, so that the state is again that of the last completed step. And where loss
scaling skips a step that overflowed in its forward pass, batch norm has taken infinities into averages that would keep
them for ever; heal() takes them out again.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Any

from hasten.data.randomness import random_state, set_random_state
from hasten.facts.machine import free_memory, ranks_here
from hasten.training.buffer_copies import Copies, Stays
from hasten.training.memories import Memories
from hasten.training.moving_buffers import Moving, affordable_trial

if TYPE_CHECKING:
    from hasten.training.run import Run

_OF_TORCH = {"torch.nn.modules.batchnorm", "torch.nn.modules.instancenorm"}  # many in a model, and remember nothing


@dataclass(slots=True)
class _Mark:
    """copies: of buffers, and of parameters that only the loss holds. whole: as far as is known."""

    copies: tuple[Copies, Copies] = field(default_factory=lambda: (Copies(), Copies()))
    memories: Memories = field(default_factory=lambda: Memories(()))
    step: int = 0
    random: dict[str, Any] = field(default_factory=dict)
    own: dict[str, Any] = field(default_factory=dict)
    whole: bool = True


class WindowStart:
    """windows: how many are remembered. Where the device decides on a window, the next begins before its answer."""

    def __init__(self, run: Run, windows: int) -> None:
        self._generators, self._device = run.built.generators, run.device
        self._heals = run.setup.step.scale_gradients
        self._marks = deque[_Mark](maxlen=windows)
        self._held = run.built.loss_parameters
        # Most teachers stand still, and one can be as large as all else together.
        teacher = Moving(
            self._held.holders,
            apart=self._held.of_model(),
            may_stand=lambda tensor: True,
            trial_windows=affordable_trial(self._held.nbytes, free_memory() / ranks_here()),
        )
        modules, self._of_loss = run.built.buffers.modules, set(map(id, self._held.modules))
        self._moving = (Moving([module._buffers for module in modules]), teacher)
        self._remembering = [module for module in modules if type(module).__module__ not in _OF_TORCH]
        self._at_first = Memories(self._remembering)
        self.name_of_moved: str | None = None  # of one, as far as was seen when a window was put back

    def mark(self, step: int) -> None:
        """The window of this optimizer step begins."""
        full = len(self._marks) == self._marks.maxlen
        mark = self._marks.popleft() if full else _Mark()
        mark.step, mark.random, mark.whole = step, random_state(self._device), True
        if self._generators:
            mark.own = self._generators.states()
        if self._heals:  # else nobody asks, and it costs more than all the rest
            mark.memories = Memories(each for each in self._remembering if each._buffers or id(each) in self._of_loss)
        for moving, copies in zip(self._moving, mark.copies, strict=True):
            if not moving.holders:
                continue
            if moving.look():
                for earlier in self._marks:
                    earlier.whole = False
            copies.take(moving.holders, moving.places, large_on_host=moving.on_trial)
        self._marks.append(mark)

    def back(self, step: int) -> bool:
        """Be as that optimizer step's window began. False where that is forgotten, or not all can be put back."""
        mark = self._of(step)
        if mark is None:
            return False
        whole = mark.whole and not any(moving.has_moved_unseen() for moving in self._moving)
        moved = chain.from_iterable(moving.moved() for moving in self._moving)
        self.name_of_moved = self.name_of_moved or next(moved, None)
        set_random_state(mark.random, self._device)
        if mark.own:
            self._generators.go_on_from(mark.own)
        for copies in mark.copies:
            copies.put_back()
        self._held.fit_containers()
        return whole

    def remembering(self) -> list[str]:
        """The classes of modules that remember something else than when the run began."""
        return [type(module).__name__ for module in self._at_first.changed()]

    def heal(self, step: int) -> None:
        """Let buffers be as that optimizer step's window began, where one was finite then and is not any more; and so
        what a loss keeps as parameters. Finite ones stay where their module remembers something else since, as it may
        have filled them."""
        mark = self._of(step)
        if mark is None:
            return
        filled = mark.memories.filled()
        for number, (moving, copies) in enumerate(zip(self._moving, mark.copies, strict=True)):
            poisoned = set(map(id, copies.poisoned()))
            if poisoned:
                copies.put_contents_back(_but(poisoned, filled))
                for later in (each.copies[number] for each in self._marks if each.step > step):
                    later.take(moving.holders, later.places)

    def _of(self, step: int) -> _Mark | None:
        return next((mark for mark in self._marks if mark.step == step), None)


def _but(poisoned: set[int], filled: Stays) -> Stays:
    """What has grown stays whatever is in it: its module would not make it again."""
    return lambda place, has_grown: has_grown or (filled(place, has_grown) and id(place) not in poisoned)
