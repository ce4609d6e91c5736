"""A stage of a pipeline leaves the loss in the middle: what is put back there, and what has to be asked about.

A switch that is set for the length of a call is still set where a stage leaves, and so it is put back: a whole call has
shown which these are. What has moved in other ways stays, as it would: a count of calls, a table that is made larger.
The last stage calls the loss to its end, and passes where the others leave it. So it knows of each call what they would
have to put back. What only an earlier block decides, or moves, it does not see; so what another stage leaves otherwise
than it was, and the last one never does, is taken for a switch as well. In both cases it is told before anything is
learned of it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager

import torch
from torch import nn

from hasten.errors import JobError
from hasten.facts.ranks import Ranks
from hasten.parallel.python_state import Moved, PythonState
from hasten.parallel.replicate.replicated import gather_over_ranks

_SHOWN = 3
_FIX = "leave `pipeline` out of the plan, or move it in each call, or outside of the loss"


class LeftEarly:
    """Of one rank. switches, moving: that whole calls have shown. cuts: numbers of the blocks where stages leave.
    blocks: what is kept in one is moved by its own stage alone, as in the whole."""

    def __init__(
        self,
        python: PythonState,
        switches: set[Moved],
        moving: set[Moved],
        cuts: Collection[int],
        blocks: Collection[nn.Module],
    ) -> None:
        self._python, self._switches, self._shown, self._cuts = python, switches, switches | moving, frozenset(cuts)
        self._in_blocks = {module for block in blocks for module in block.modules()}
        self._at_end = set[str]()  # what the last stage has left otherwise, in any call
        self.forget()

    def forget(self) -> None:
        """What is in doubt, as after calls that leave nothing behind."""
        self._left, self._switched, self._in_turns = set[str](), set[str](), set[str]()

    @contextmanager
    def unheard(self) -> Iterator[None]:
        """Inside, stages are computed of which nothing stays."""
        heard = self._left, self._switched, self._in_turns
        self.forget()
        try:
            yield
        finally:
            self._left, self._switched, self._in_turns = heard

    @contextmanager
    def last_stage(self) -> Iterator[Callable[[int], None]]:
        """Inside, it is computed. Gives what is to be called with the number of each block, where it is called."""
        begun, at_cuts = self._python.read(), set[Moved]()

        def at_block(number: int) -> None:
            if number in self._cuts:
                at_cuts.update(self._python.moved(begun))

        yield at_block
        moved = self._python.moved(begun)
        self._at_end.update(map(self._python.named, moved - self._shown))
        self._switched.update(map(self._python.named, at_cuts - self._switches - moved))

    @contextmanager
    def stage(self) -> Iterator[None]:
        """Inside, one is computed that leaves the loss."""
        before = self._python.read()
        try:
            yield
        finally:
            moved = self._python.moved(before)
            doubtful = self._around(moved) - self._shown
            # A log, or what goes by a clock, each stage moves in calls of its own.
            left = {each for each in doubtful if not self._python.grew_or_rose(each, before)}
            self._left.update({*map(self._python.named, left)} - self._at_end)
            self._python.put_back(before, moved & self._switches)

    @contextmanager
    def stage_in_turns(self) -> Iterator[None]:
        """As stage(), where a later one of this rank follows for the same microbatch: nothing around the blocks is to
        move here."""
        before = self._python.read()
        try:
            yield
        finally:
            moved = self._python.moved(before)
            around = self._around(moved)
            unknown = {each for each in around - self._shown if not self._python.grew(each, before)}
            self._in_turns.update(map(self._python.named, unknown))
            self._python.put_back(before, around | (moved & self._switches))

    def _around(self, moved: set[Moved]) -> set[Moved]:
        return {each for each in moved if not self._python.lies_in(each, self._in_blocks)}

    def doubts(self, device: torch.device) -> torch.Tensor:
        """[1], float64: zero, if there are none."""
        return torch.tensor(
            [len(self._left) + len(self._switched) + len(self._in_turns)], dtype=torch.float64, device=device
        )

    def settle(self, ranks: Ranks, device: torch.device) -> None:
        """Raises JobError, on all ranks of the pipeline: for what the last stage puts back behind a cut, what another
        leaves otherwise and the last one never does, and what stages of one rank move in turns."""
        told = gather_over_ranks([(self._in_turns, self._switched, self._left, self._at_end)], ranks, device)
        in_turns, switched, left, at_end = (set[str]().union(*each) for each in zip(*told, strict=True))
        self.forget()
        self._at_end |= at_end
        if in_turns:
            why = "a process with several stages calls the loss several times for one microbatch"
            raise _refused(in_turns, why, f'"1f1b" may do, or {_FIX}')
        if switched := switched | (left - at_end):
            raise _refused(switched, "a stage leaves the call before it is put back")


def _refused(names: Collection[str], why: str, fix: str = _FIX) -> JobError:
    what = f"moves {', '.join(sorted(names)[:_SHOWN])}, itself or in its model, in some calls and not in the first ones"
    return JobError("loss", f"{what}: {why}", fix)
