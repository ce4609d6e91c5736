"""Checkpoints while a run trains: when to save, behind its back, and what happens when the disk refuses.

The training stands still for a copy of its state into memory; a thread writes the copy, forces it to the disk, reads it
back, and only then removes what the run need not keep. Where several ranks hold the state in parts, each has such a
thread for its own, and this one leads them. How long the training stood still, and how long the thread took
where both work on the same processors, say how often saving is worth it: seldom enough for 1 % of the time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hasten.checkpoint.digests import most_threads
from hasten.checkpoint.sharded.collective_save import Led, Together, led
from hasten.checkpoint.sharded.rank_files import holds_parts
from hasten.checkpoint.sharded.slabs import Holding, holding
from hasten.checkpoint.state_tree import flattened_in_parts
from hasten.checkpoint.store import Checkpoint, Contents, Store
from hasten.errors import StorageFailed
from hasten.facts.events import Event, Noticed, Saved
from hasten.facts.saving import Saving, seconds_between
from hasten.training.saving.host_snapshot import Snapshots, on_host
from hasten.training.saving.retention import Room

MOST_FAILURES = 3  # in a row


@dataclass(frozen=True, kw_only=True, slots=True)
class State:
    """What is to be saved.

    trees: by name, of plain values and tensors, which may be the run's own.
    since: when the training began to stand still for it, by the saver's clock.
    """

    step: int
    epoch: int
    reason: str
    best: bool
    trees: Mapping[str, Any]
    since: float


@dataclass(frozen=True, slots=True)
class _Written:
    checkpoint: Checkpoint
    bytes: int
    seconds: float
    note: str  # of what went wrong beside it; empty when nothing did


class Saver:
    """One for each run. tell: receives Saved and Noticed, in the thread that trains.

    before_write: called in the writing thread first of all: forces to the disk what a checkpoint refers to.
    before_removal: called there before anything is removed: raises StorageFailed where the folder is not the run's own.
    together: leads the other ranks, where they hold the state in parts; None where it is whole.
    shares_processor: whether the training computes on the processors that the thread works on.
    world_size: how many ranks the state is of.
    damaged: checkpoints that were found broken; they go when a whole one is on the disk.
    shown: the store's folder as it is named in what is told; None names it as it is.
    """

    def __init__(
        self,
        store: Store,
        saving: Saving,
        tell: Callable[[Event], None],
        *,
        before_write: Callable[[], None],
        before_removal: Callable[[], None] = lambda: None,
        together: Together | None = None,
        shares_processor: bool,
        world_size: int = 1,
        damaged: Sequence[Checkpoint] = (),
        shown: Path | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.store, self.saving = store, saving
        self._tell, self._before_write, self._before_removal = tell, before_write, before_removal
        self._together, self._shares, self._world_size = together, shares_processor, world_size
        self._shown = shown or store.folder
        self._room, self._clock = Room(store, saving, damaged), clock
        self._snapshots, self._parts = Snapshots(), Snapshots()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._writing: tuple[Future[_Written], State, float, float] | None = None  # with its stall and its start
        self._failures = 0
        self._start = self._next = clock()  # the first step shows at once whether saving works, and what it costs
        self._cost_seconds = 0.0
        self.save_seconds = 0.0  # that the last one took from its start until it was verified
        self.last_failed = False

    def worth_saving_best(self) -> bool:
        """Whether saving what is the best so far costs no more than saving may."""
        saving = self.saving
        if not saving.keep_best or saving.every_steps is not None:
            return saving.keep_best
        return self._clock() >= self._start + seconds_between(replace(saving, every_seconds=0.0), self._cost_seconds)

    def now(self) -> float:
        """Seconds, for State.since."""
        return self._clock()

    @property
    def has_news(self) -> bool:
        """Whether a checkpoint was written, or could not be, since it was last told."""
        return self._writing is not None and self._writing[0].done()

    def due(self, step: int) -> bool:
        """Whether to save after this step."""
        every = self.saving.every_steps
        if every is not None:
            return step % every == 0
        return self._clock() >= self._next

    def save(self, state: State) -> None:
        """Save behind the training's back; where the last one is not on the disk yet, that comes first.

        Raises StorageFailed at the third failure in a row, Misconfigured for a state that no file can hold.
        """
        self._begin(state, 1 if self._shares else most_threads())

    def save_now(self, state: State) -> None:
        """Save, and wait until it is on the disk: the training has nothing else to do. Raises as save does."""
        self._begin(state, most_threads())
        self.settle()

    def _begin(self, state: State, threads: int) -> None:
        self._start = start = state.since
        self.settle()
        tree, tensors, in_parts = flattened_in_parts(dict(state.trees))
        parts = holding(in_parts)
        copies, copied_parts = self._snapshots.of(tensors), self._parts.of(parts.slabs)
        aside = copies is not None and copied_parts is not None
        contents = Contents(
            step=state.step,
            epoch=state.epoch,
            reason=state.reason,
            best=state.best,
            world_size=self._world_size,
            trees=tree,
            tensors=copies if copies is not None else on_host(tensors),
        )
        held = replace(parts, slabs=copied_parts if copied_parts is not None else on_host(parts.slabs))
        future = self._thread.submit(self._write, contents, held, threads)
        if not aside:  # the tensors are the run's own: it must not go on before they are written
            future.exception()
        stall = self._clock() - start
        self._writing = (future, state, stall, start)
        self._next = self._clock() + seconds_between(self.saving, max(self._cost_seconds, stall))

    def settle(self) -> None:
        """Wait until nothing is being written. Raises StorageFailed at the third failure in a row."""
        if self._writing is not None:
            self._writing[0].exception()
            self.poll()

    def poll(self) -> None:
        """Tell what was written meanwhile. Raises StorageFailed at the third failure in a row."""
        if self._writing is None or not self._writing[0].done():
            return
        (future, state, stall, start), self._writing = self._writing, None
        try:
            written = future.result()
        except StorageFailed as error:
            self._fail(state.step, error)
            return
        self._failures, self.last_failed = 0, False
        self.save_seconds = stall + written.seconds
        self._cost_seconds = self.save_seconds if self._shares else stall
        self._next = start + seconds_between(self.saving, self._cost_seconds)
        if written.note:
            self._tell(Noticed(text=written.note))
        self._tell(
            Saved(
                step=state.step,
                path=str(self._shown / written.checkpoint.path.name),
                bytes=written.bytes,
                reason=state.reason,
                stall_seconds=stall,
                seconds=self.save_seconds,
            )
        )

    def close(self) -> None:
        """Wait for the thread. What it could not write is not told any more."""
        self._thread.shutdown()

    def refused(self, step: int, error: StorageFailed) -> None:
        """The checkpoint of this step cannot be saved, for a reason outside. Raises StorageFailed at the third failure
        in a row."""
        self._next = self._clock() + seconds_between(self.saving, self._cost_seconds)
        if self._together is not None:  # the others have begun to save
            self._thread.submit(_decline, self._together)
        self._fail(step, error)

    def _fail(self, step: int, error: StorageFailed) -> None:
        self._failures, self.last_failed = self._failures + 1, True
        if self._failures >= MOST_FAILURES:
            what = f"{self._failures} checkpoints in a row could not be saved; the last: {error.what}"
            raise StorageFailed(what, where=error.where, fix=error.fix) from error
        self._tell(
            Noticed(
                text=f"the checkpoint of step {step:,} could not be saved: {error.where}: {error.what}. Training goes "
                f"on, and tries again with the next one; {error.fix}"
            )
        )

    def _write(self, contents: Contents, held: Holding, threads: int) -> _Written:
        begun = time.monotonic()
        if self._together is None:
            self._before_write()
            checkpoint = self.store.save(contents, threads)
        else:
            with led(self._together) as save:
                self._before_write()
                checkpoint = self.store.save_led(contents, held, save, threads)
        written_bytes = self._checked(checkpoint, threads)
        self._before_removal()
        note = ""
        try:
            self._room.make(checkpoint)
        except StorageFailed as error:  # the new one is whole all the same
            note = f"an older checkpoint stays: {error.where}: {error.what}; {error.fix}"
        return _Written(checkpoint, written_bytes, time.monotonic() - begun, note)

    def _checked(self, checkpoint: Checkpoint, threads: int) -> int:
        """Its bytes, all read back. Raises StorageFailed when it is not on the disk as it was written; it goes then, so
        that it is not counted among those that stay."""
        try:
            # Of parts, each rank has read back its own.
            return checkpoint.verify(threads, looks_at=lambda name: not holds_parts(name)).bytes
        except StorageFailed as error:
            self._before_removal()
            self._room.damaged.add(checkpoint)
            with suppress(StorageFailed):  # it goes when there is a whole one
                self.store.remove(checkpoint)
            fix = error.fix or "check the disk, and the memory of this machine"
            raise StorageFailed(f"read back, {error.what}", where=str(checkpoint.path), fix=fix) from error


def _decline(together: Together) -> None:
    """Have the others not wait for a save that does not come."""
    Led(together).give_up()
