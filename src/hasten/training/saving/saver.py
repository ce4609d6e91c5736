"""Saves checkpoints while a run trains: when, in which thread, and what happens when the disk refuses.

Training stops only for a copy of its state into memory. A thread writes the copy, forces it to the disk, reads it back,
and only then removes old checkpoints. The measured cost of a save sets the time to the next one: 1 % of the time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from hasten.checkpoint.digests import most_threads
from hasten.checkpoint.manifest import holds_parts
from hasten.checkpoint.sharded.collective_save import Exchange, Led, led
from hasten.checkpoint.sharded.tensor_slabs import Holding, holding
from hasten.checkpoint.state_tree import flattened
from hasten.checkpoint.store import Checkpoint, Contents, Store
from hasten.errors import StorageFailed
from hasten.facts.events import Event, Noticed, Saved
from hasten.facts.saving import Saving, seconds_between
from hasten.training.saving.host_snapshot import Snapshots
from hasten.training.saving.retention import remove_old

MOST_FAILURES = 3  # in a row


@dataclass(frozen=True, kw_only=True, slots=True)
class State:
    """What is to be saved.

    trees: by name, plain values and tensors, which may be the run's own.
    since: when training stopped for it, on the monotonic clock.
    """

    step: int
    epoch: int
    reason: str
    best: bool
    trees: Mapping[str, Any]
    since: float


def on_host(state: State, snapshots: Snapshots) -> tuple[Any, dict[str, Tensor], Holding, bool]:
    """The state's tree, its whole tensors, and what this rank holds of tensors in parts; both on the host. The last
    value: whether they are copies, which training does not change."""
    tree, tensors, in_parts = flattened(dict(state.trees))
    parts = holding(in_parts)
    host, is_copy = snapshots.of({**tensors, **parts.slabs})
    held = replace(parts, slabs={key: host[key] for key in parts.slabs})
    return tree, {name: host[name] for name in tensors}, held, is_copy


@dataclass(frozen=True, slots=True)
class _Written:
    checkpoint: Checkpoint
    bytes: int
    seconds: float
    note: str  # what failed without harm to the checkpoint; "" when nothing did


class Saver:
    """One for each run.

    report: receives Saved and Noticed, in the thread that trains.
    before_write: called in the writing thread first; forces to the disk what a checkpoint refers to.
    check_folder: called before a save and before anything is removed; raises StorageFailed where the folder is not
        the run's own.
    exchange: leads the other ranks where they hold the state in parts; None where it is whole.
    shares_processor: whether training computes on the processors that the thread works on.
    world_size: how many ranks the state is of.
    damaged: damaged checkpoints, which are removed once a whole one is on the disk.
    shown: the store's folder as messages name it; None for its path.
    """

    def __init__(
        self,
        store: Store,
        saving: Saving,
        report: Callable[[Event], None],
        *,
        before_write: Callable[[], None],
        check_folder: Callable[[], None] = lambda: None,
        exchange: Exchange | None = None,
        shares_processor: bool,
        world_size: int = 1,
        damaged: Sequence[Checkpoint] = (),
        shown: Path | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.store, self.saving = store, saving
        self._report, self._before_write, self._check_folder = report, before_write, check_folder
        self._exchange, self._shares, self._world_size = exchange, shares_processor, world_size
        self._shown, self._damaged, self._clock = shown or store.folder, {*damaged}, clock
        self._snapshots, self._thread = Snapshots(), ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._writing: tuple[Future[_Written], State, float, float] | None = None  # with its stall and its start
        self._failures = 0
        self._start = self._next = clock()  # save after the first step: it shows whether saving works, and its cost
        self._cost_seconds = 0.0
        self.save_seconds = 0.0  # of the last save, until it was verified
        self.last_failed = False

    def worth_saving_best(self) -> bool:
        """Whether the best so far can be saved within the share of time that saving may take."""
        saving = self.saving
        if not saving.keep_best or saving.every_steps is not None:
            return saving.keep_best
        return self._clock() >= self._start + seconds_between(replace(saving, every_seconds=0.0), self._cost_seconds)

    def due(self, step: int) -> bool:
        """Whether to save after this step."""
        every = self.saving.every_steps
        return step % every == 0 if every is not None else self._clock() >= self._next

    def save(self, state: State) -> None:
        """Start a save in the background; waits for the one before it.

        Raises StorageFailed at the third failure in a row and for a folder that is not the run's own, Misconfigured for
        a state that no file can hold.
        """
        self._begin(state, 1 if self._shares else most_threads())

    def save_now(self, state: State) -> None:
        """Save, and wait until it is on the disk. Raises as save does."""
        self._begin(state, most_threads())
        self.settle()

    def settle(self) -> None:
        """Wait for the save in progress. Raises StorageFailed at the third failure in a row."""
        if self._writing is not None:
            self._writing[0].exception()
            self.poll()

    def poll(self) -> None:
        """Report a save that has ended. Raises StorageFailed at the third failure in a row."""
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
            self._report(Noticed(text=written.note))
        self._report(
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
        """Wait for the thread. A failure is not reported any more."""
        self._thread.shutdown()

    def refused(self, step: int, error: StorageFailed) -> None:
        """Count a save that could not begin. Raises StorageFailed at the third failure in a row."""
        self._next = self._clock() + seconds_between(self.saving, self._cost_seconds)
        if self._exchange is not None:  # the other ranks have begun to save
            self._thread.submit(Led(self._exchange).give_up)
        self._fail(step, error)

    def _begin(self, state: State, threads: int) -> None:
        self._start = start = state.since
        self.settle()
        self._check_folder()
        tree, tensors, held, is_copy = on_host(state, self._snapshots)
        contents = Contents(
            step=state.step,
            epoch=state.epoch,
            reason=state.reason,
            best=state.best,
            world_size=self._world_size,
            trees=tree,
            tensors=tensors,
        )
        future = self._thread.submit(self._write, contents, held, threads)
        if not is_copy:  # training would change the tensors that are being written
            future.exception()
        stall = self._clock() - start
        self._writing = (future, state, stall, start)
        self._next = self._clock() + seconds_between(self.saving, max(self._cost_seconds, stall))

    def _fail(self, step: int, error: StorageFailed) -> None:
        self._failures, self.last_failed = self._failures + 1, True
        if self._failures >= MOST_FAILURES:
            what = f"{self._failures} checkpoints in a row could not be saved; the last: {error.what}"
            raise StorageFailed(what, where=error.where, fix=error.fix) from error
        text = (
            f"the checkpoint of step {step:,} could not be saved: {error.where}: {error.what}. Training continues, and "
            f"the next save tries again; {error.fix}"
        )
        self._report(Noticed(text=text))

    def _write(self, contents: Contents, held: Holding, threads: int) -> _Written:
        begun = time.monotonic()
        if self._exchange is None:
            self._before_write()
            checkpoint = self.store.save(contents, threads)
        else:
            with led(self._exchange) as save:
                self._before_write()
                checkpoint = self.store.save_led(contents, held, save, threads)
        written_bytes = self._verified(checkpoint, threads)
        self._check_folder()
        note = ""
        try:
            remove_old(self.store, self.saving, checkpoint, self._damaged)
        except StorageFailed as error:  # the new checkpoint is whole all the same
            note = f"an old checkpoint was not removed: {error.where}: {error.what}; {error.fix}"
        return _Written(checkpoint, written_bytes, time.monotonic() - begun, note)

    def _verified(self, checkpoint: Checkpoint, threads: int) -> int:
        """The checkpoint's bytes, all read back. Raises StorageFailed where they differ from what was written, and
        removes it, so that it does not count among those to keep."""
        try:
            # Each rank has read back its own parts.
            return checkpoint.verify(threads, reads=lambda name: not holds_parts(name)).bytes
        except StorageFailed as error:
            self._check_folder()
            self._damaged.add(checkpoint)
            with suppress(StorageFailed):  # it is removed after the next save
                self.store.remove(checkpoint)
            fix = error.fix or "check the disk, and the memory of this machine"
            raise StorageFailed(f"read back, {error.what}", where=str(checkpoint.path), fix=fix) from error
