"""A run with a folder: its plan, its log, its checkpoints while it trains, and its weights at the end.

The leading rank holds the folder's lock and writes. Other ranks save the parts that they hold, and stop and resume with
the leader.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hasten.checkpoint.locks.run_lock import RunLock
from hasten.checkpoint.store import Store
from hasten.facts.events import Finished, Receiver
from hasten.facts.saving import Saving
from hasten.parallel.launch.rank_messages import Agreement, Exchange
from hasten.training.loop import Result, train_run
from hasten.training.reporting.logs import JsonLines, Several
from hasten.training.run import Run
from hasten.training.run_folder.folder_names import CHECKPOINTS
from hasten.training.run_folder.run_directory import RunFolder
from hasten.training.run_folder.run_request import RunRequest
from hasten.training.saving.checkpointing import Checkpointing, Origin
from hasten.training.saving.follower_saver import FollowerSaver
from hasten.training.saving.last_checkpoint import LastSaved, what_is_left
from hasten.training.saving.recovery import Recovered
from hasten.training.saving.run_configuration import configuration_of
from hasten.training.saving.saver import Saver
from hasten.training.saving.stop_request import signals_as_requests
from hasten.training.setup.configuration import in_force


@dataclass(frozen=True, kw_only=True, slots=True)
class SavedRun:
    """
    lock: of the folder, held.
    found: in the folder, to resume from; None for a run that begins.
    asked: how the run was requested, which is recorded in the folder.
    way_on: the command, or the call, that resumes the run once it has ended.
    say: prints at once that a signal was received.
    """

    folder: RunFolder
    lock: RunLock
    found: Recovered | None
    asked: RunRequest
    way_on: str
    say: Callable[[str], None]

    def train(self, run: Run, shown: Several) -> Result:
        """Begin the run, or resume it. shown: receive its events, and stay open.

        Raises as train_run does, and StorageFailed, also when the folder is no longer the run's own.
        """
        agreement, exchange = _between_ranks(run)
        configuration, origin = _origin(self.found, run)
        self.lock.check()  # building a run can take minutes
        self.asked.write(self.folder.home)
        log = self.folder.metrics(origin.log_bytes if origin is not None else 0)
        last = LastSaved(self.folder.path)

        def left() -> str:
            return what_is_left(last, self.way_on)

        with closing(log):
            self.folder.check_space(sum(each.nbytes for each in run.model.parameters()), self.asked.saving)
            self.folder.describe(run.built.plan, run.setup.machine)
            outward = shown.after(log, last)
            saver = self._saver(run, exchange, log, outward)
            with signals_as_requests(self.asked.saving.grace_seconds, self.say, left) as stop, closing(saver):
                keeping = Checkpointing(
                    saver,
                    origin=origin,
                    stop=stop,
                    every_steps=self.asked.saving.every_steps,
                    agreement=agreement,
                    configuration=configuration,
                    log_bytes=log.bytes,
                    report=outward.log,
                )
                result = train_run(run, outward, keeping)
                self.lock.check()
                weights = self.folder.save_weights(result.weights)
                outward.log(finished(result, weights))
        return result

    def _saver(self, run: Run, exchange: Exchange | None, log: JsonLines, outward: Receiver) -> Saver:
        store = Store(self.folder.home / CHECKPOINTS)
        damaged = {each.path.name for each in self.found.damaged} if self.found is not None else set[str]()
        return Saver(
            store,
            self.asked.saving,
            outward.log,
            before_write=log.force,
            check_folder=self.lock.check,
            exchange=exchange,
            shares_processor=run.device.type == "cpu",
            world_size=run.ranks.size,
            damaged=[each for each in store.found() if each.path.name in damaged],
            shown=self.folder.path / CHECKPOINTS,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class FollowerRun:
    """The same run on a rank that does not lead. found: what the leader resumes from; None for a run that begins."""

    found: Recovered | None
    saving: Saving

    def train(self, run: Run, shown: Receiver) -> Result:
        """As SavedRun.train, which the leader calls at the same time."""
        agreement, exchange = _between_ranks(run)
        configuration, origin = _origin(self.found, run)
        saver = FollowerSaver(exchange, shares_processor=run.device.type == "cpu")
        # The leader alone writes a log, and says what happens to the run.
        silent = signals_as_requests(self.saving.grace_seconds, lambda text: None, lambda: "")
        with silent as stop, closing(saver):
            keeping = Checkpointing(
                saver,
                origin=origin,
                stop=stop,
                every_steps=self.saving.every_steps,
                agreement=agreement,
                configuration=configuration,
                log_bytes=lambda: 0,
                report=shown.log,
            )
            return train_run(run, shown, keeping)


def _between_ranks(run: Run) -> tuple[Agreement | None, Exchange | None]:
    """How the ranks agree, and how they save together; None where that is not needed. Made before anything can be
    refused on one rank alone, as all ranks make them together."""
    agreement = Agreement() if run.ranks.many else None
    return agreement, Exchange(run.ranks) if not run.built.strategy.sharding.is_whole else None


def _origin(found: Recovered | None, run: Run) -> tuple[dict[str, Any], Origin | None]:
    """Let the run resume from what was found; the configuration that its checkpoints save, and where it resumes."""
    configuration = configuration_of(run)  # now, as a resumed state brings changed rates
    if found is None:
        return configuration, None
    origin = found.given_to(run, configuration)
    if origin.states is not None:
        configuration = in_force(origin.states["configuration"], configuration)
    return configuration, origin


def finished(result: Result, weights: Path | None) -> Finished:
    """weights: the file that holds them; None where none was written."""
    return Finished(
        reason=result.reason,
        steps=result.steps,
        epochs=result.epochs,
        seconds=result.seconds,
        results=result.results,
        kept_step=result.kept_step,
        skipped_updates=result.skipped_updates,
        weights=None if weights is None else str(weights),
    )
