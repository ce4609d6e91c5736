"""A stage of a pipeline leaves the loss in the middle: what is put back there, and what has to be asked about.

A switch that is set for the length of a call is still set where a stage leaves, and so it is put back: a whole call has
shown which these are. What has moved in other ways stays, as it would: a count of calls, a table that is made larger.
Where something has moved that no whole call has shown to move, a stage cannot tell one from the other. The last stage
can, for it calls the loss to its end; and so it is asked, before anything is learned of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from functools import reduce
from operator import or_

import torch
from torch import nn

from hasten.errors import JobError
from hasten.facts.ranks import Ranks
from hasten.parallel.python_state import Moved, PythonState
from hasten.parallel.replicate import gather_over_ranks

_SHOWN = 3
_FIX = "leave `pipeline` out of the plan, or move it in each call, or outside of the loss"


class LeftEarly:
    """Of one rank. switches, moving: that whole calls have shown. blocks: what is kept in one is moved by its own stage
    alone, as in the whole."""

    def __init__(
        self, python: PythonState, switches: set[Moved], moving: set[Moved], blocks: Collection[nn.Module]
    ) -> None:
        self._python, self._switches, self._shown = python, switches, switches | moving
        self._in_blocks = {module for block in blocks for module in block.modules()}
        self.forget()

    def forget(self) -> None:
        """What is in doubt, as after calls that leave nothing behind."""
        # Each with the microbatches that have moved it: one may move for good what another has only switched.
        self._left, self._in_turns, self._at_end = Counter[str](), Counter[str](), Counter[str]()

    @contextmanager
    def stage(self, *, is_last: bool, again: bool) -> Iterator[None]:
        """Inside, a stage is computed. again: a later one of this rank follows for the same microbatch, and so nothing
        around the blocks is to move here."""
        before = self._python.read()
        try:
            yield
        finally:
            moved = self._python.moved(before)
            around = {each for each in moved if not self._python.lies_in(each, self._in_blocks)}
            unknown = {each for each in around - self._shown if not self._python.grew(each, before)}
            if not is_last:
                self._python.put_back(before, (moved & self._switches) | (around if again else set()))
            names = set(map(self._python.named, unknown))
            (self._at_end if is_last else self._in_turns if again else self._left).update(names)

    def doubts(self, device: torch.device) -> torch.Tensor:
        """[1], float64: zero, if there are none."""
        return torch.tensor([len(self._left) + len(self._in_turns)], dtype=torch.float64, device=device)

    def settle(self, ranks: Ranks, device: torch.device) -> None:
        """Raises JobError, on all ranks of the pipeline, for what the last stage has put back, and for what stages of
        one rank have moved in turns."""
        told = gather_over_ranks([(self._left, self._in_turns, self._at_end)], ranks, device)
        left, in_turns, at_end = (reduce(or_, each) for each in zip(*told, strict=True))  # the most of each name
        self.forget()
        if in_turns:
            why = "a process with several stages calls the loss several times for one microbatch"
            raise _refused(in_turns, why, f'"1f1b" may do, or {_FIX}')
        if switched := left - at_end:
            raise _refused(switched, "a stage leaves the call before it is put back")


def _refused(names: Collection[str], why: str, fix: str = _FIX) -> JobError:
    what = f"or its model, moves {', '.join(sorted(names)[:_SHOWN])} in some calls, and not in the first ones: {why}"
    return JobError("loss", what, fix)
