"""When a run saves, how it ends when a signal asks for it, and where it resumes.

Where several ranks agree, what one of them requests is done one step later, on all of them; what depends on the step
alone is done at once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hasten.errors import HastenError, StorageFailed
from hasten.facts.events import Event, Noticed
from hasten.stop_signals import interrupt
from hasten.training.saving.follower_saver import FollowerSaver
from hasten.training.saving.saver import Saver, State

if TYPE_CHECKING:
    from hasten.parallel.launch.rank_messages import Agreement
    from hasten.training.run import Run
    from hasten.training.saving.stop_request import StopRequest

Trees = Callable[[], dict[str, Any]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Origin:
    """Where a run resumes.

    states: of the checkpoint, by name; None where the run has none, and begins again.
    """

    step: int
    checkpoint: Path | None
    states: Mapping[str, Any] | None
    notices: tuple[str, ...]

    @property
    def begins_log(self) -> bool:
        return self.states is None

    @property
    def log_bytes(self) -> int:
        """The length of the run's log at the checkpoint."""
        return self.states["log"]["bytes"] if self.states is not None else 0


class Checkpointing:
    """
    origin: where the run resumes; None for a run that begins.
    stop: None where no signal is handled.
    every_steps: after which all ranks save; None for a rule that the saver has.
    agreement: between the ranks; None for a process that is alone.
    log_bytes: the length of the run's log now.
    report: receives Noticed.
    """

    def __init__(
        self,
        saver: Saver | FollowerSaver,
        *,
        origin: Origin | None,
        stop: StopRequest | None,
        every_steps: int | None,
        agreement: Agreement | None,
        configuration: Mapping[str, Any],
        log_bytes: Callable[[], int],
        report: Callable[[Event], None],
    ) -> None:
        self.origin = origin
        self._saver, self._stop, self._every_steps, self._agreement = saver, stop, every_steps, agreement
        self._configuration, self._requested = configuration, False
        self._saves, self._stops = False, 0  # what was decided after the last step
        self._log_bytes, self._report = log_bytes, report
        self._last = None if origin is None or origin.states is None else origin.step  # that was saved

    def due(self, step: int) -> bool:
        """Whether after_step has work to do. Cheap, because it is called at every step.

        Raises StorageFailed at the third failure in a row.
        """
        self._saver.poll()
        self._saves, self._stops = self._saver.due(step), self._stopping
        if self._agreement is not None:
            self._agree(self._agreement, step)
        return self._saves or self._stops > 0

    def _agree(self, agreement: Agreement, step: int) -> None:
        every = self._every_steps
        self._requested = self._saves and every is None and not self._requested  # once for each save
        requested, self._stops = agreement.of_last_step(self._requested, self._stops)
        if self._stops and self._stop is not None:
            self._stop.ask(self._stops)
        self._saves = bool(requested) or (every is not None and step % every == 0)

    @property
    def _stopping(self) -> int:
        """The signal that asked for the end; 0 where none did."""
        return (self._stop.number or 0) if self._stop is not None else 0

    def _anywhere(self, request: bool) -> bool:
        """Whether any rank requests this. Where there are several, all of them ask."""
        return request if self._agreement is None else bool(self._agreement.at_once(request)[0])

    def after_step(self, run: Run, trees: Trees) -> None:
        """Raises KeyboardInterrupt when a signal asked for the end; the run is saved by then."""
        if self._stops:
            self._save_and_end(run, trees)
        if self._saves and self._last != run.steps:  # else it was saved as the best one
            self._save(self._saver.save, "as planned", run, trees)

    def after_evaluation(self, run: Run, trees: Trees) -> None:
        if run.is_best and self._anywhere(self._saver.worth_saving_best()):
            self._save(self._saver.save, "the best evaluation so far", run, trees)

    def at_the_end(self, run: Run, trees: Trees) -> None:
        """Raises StorageFailed at the third failure in a row."""
        self._saver.settle()
        if self._anywhere(self._is_unsaved(run)):
            self._save(self._saver.save_now, "the end of the run", run, trees)

    def check_stop(self) -> None:
        """Called between batches of an evaluation. Raises KeyboardInterrupt when a signal asked for the end.

        Several ranks finish the evaluation first, as each has its own share of the batches.
        """
        if self._agreement is None and self._stopping:
            raise interrupt(self._stopping)

    def stop_in_evaluation(self, interrupted: KeyboardInterrupt, run: Run, trees: Trees) -> None:
        """Save and end; the evaluation is repeated when the run is resumed. Raises KeyboardInterrupt."""
        if self._agreement is None and self._stop is not None and not self._stop.twice:
            self._save_and_end(run, trees)
        raise interrupted

    def save_after(self, error: BaseException, run: Run, trees: Trees) -> None:
        """Save the last completed step before `error` ends the run.

        Several ranks save nothing, as the others may be at any step: their last checkpoint is used. Raises
        KeyboardInterrupt where a signal asked for the end, which may have killed a loader worker and so caused `error`.
        """
        if isinstance(error, KeyboardInterrupt):
            return
        try:
            self._saver.settle()
            if isinstance(error, StorageFailed) or self._agreement is not None:
                return
            if not run.built.windows.restore():
                error.add_note(f"step {run.steps} is not saved: the failed step cannot be undone completely")
                return
            if self._stopping:
                self._save_and_end(run, trees)
            if run.steps > 0 and self._is_unsaved(run):
                self._save(self._saver.save_now, f"before {type(error).__name__}", run, trees)
        except Exception as second:  # of a disk, or of a device that does not answer any more
            what = second.what if isinstance(second, HastenError) else f"{type(second).__name__}: {second}"
            error.add_note(f"the last completed step could not be saved: {what}")

    def _save_and_end(self, run: Run, trees: Trees) -> None:
        self._saver.settle()
        left, needed = self._stop.seconds_left if self._stop is not None else None, self._saver.save_seconds
        if self._anywhere(left is not None and needed > left):
            why = f"the last save took {needed:.1f} s, and {max(left or 0, 0):.1f} s of the grace period are left"
            self._report(Noticed(text=f"step {run.steps:,} is not saved: {why}; the checkpoint before it is kept"))
        elif self._anywhere(self._is_unsaved(run)):
            self._save(self._saver.save_now, "asked to end", run, trees)
        self._anywhere(False)  # all meet here: a launcher kills ranks that still write as soon as one has ended
        raise interrupt(self._stopping or self._stops)

    def _save(self, save: Callable[[State], None], reason: str, run: Run, trees: Trees) -> None:
        since = time.monotonic()
        found = trees()  # which also logs the lines that wait for their loss
        self._last = run.steps
        try:
            found["log"]["bytes"] = self._log_bytes()
        except StorageFailed as error:  # lines wait for the disk, which has no space for a checkpoint either
            self._saver.refused(run.steps, error)
            return
        found["configuration"] = dict(self._configuration)
        save(State(step=run.steps, epoch=run.epoch, reason=reason, best=run.is_best, trees=found, since=since))

    def _is_unsaved(self, run: Run) -> bool:
        return self._last != run.steps or self._saver.last_failed
