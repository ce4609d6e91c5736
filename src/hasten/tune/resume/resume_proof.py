"""Whether a run that is killed at any instant resumes as if nothing had happened: a trial on the job itself.

One run is not disturbed, as the reference. Another is killed again and again, with all its processes, and resumed each
time. Both are asked to end after the same step, by SIGTERM as a scheduler asks, so that each saves a checkpoint at
exactly that step. The log of the second run is compared after every kill, and at the end everything in both
checkpoints. Where they differ, a second reference is run; where that one differs as well, the job is not deterministic.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, Literal, Protocol

from hasten.errors import HastenError, StorageFailed
from hasten.measure.run_difference import Difference, Extent, extent_of, first_in_lines, first_in_states, lines_of
from hasten.training.run_folder.run_directory import RunFolder
from hasten.tune.resume.kill_instants import Instant, Phase, RunTimes, draw, missed, training_seconds
from hasten.tune.resume.run_process import Errand, RunProcess, Train

SAVES = 12  # in a run, about
MOST_BETWEEN_SAVES = 10  # steps
LEAST_SAVES = 4
UNDISTURBED = ("reference run", "second reference run")
IDLE_RUNS = 3  # that end before anything could kill them; another one would as well
LONGEST_SECONDS = 3600.0  # that the reference may be silent: while it builds the job, or is in one step or evaluation
MANY_TIMES, LEAST_SECONDS = 20.0, 300.0  # of the reference's longest silence, before another run is called hung
CHECK_SECONDS = 0.05  # between two checks of a process that sends nothing
_STATES = ("run", "loop", "weights")  # of a checkpoint; what it says of the log's seconds and bytes is a clock's
_SAVE_CHECK_SECONDS = 0.001
_LEAST_SAVE_SECONDS = 0.002

Verdict = Literal["bit-exact", "differs", "not deterministic", "not killed"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Kill:
    """step: the last one that the run had reported; saved_step: that of its newest checkpoint, 0 where it had none."""

    phase: Phase
    step: int
    saved_step: int


@dataclass(frozen=True, kw_only=True, slots=True)
class ResumeProof:
    """steps: after which both were compared; total_steps: of the planned run, None where the data does not say. runs:
    without the references. lines, extent: what was compared of a run that came to its end. resumed_at: the step from
    which the process had resumed that differed. itself: where two references differ."""

    steps: int
    total_steps: int | None
    save_every: int
    wanted: int
    kills: tuple[Kill, ...]
    runs: int
    lines: int
    extent: Extent
    times: RunTimes
    difference: Difference | None = None
    resumed_at: int | None = None
    itself: Difference | None = None

    @property
    def verdict(self) -> Verdict:
        if self.difference is not None:
            return "differs" if self.itself is None else "not deterministic"
        return "bit-exact" if self.kills else "not killed"


class Watch(Protocol):
    def trains(self, what: str, step: int, steps: int) -> None: ...
    def killed(self, number: int, wanted: int, kill: Kill) -> None: ...


def prove_resume(
    job: str,
    plan: str | None,
    train: Train,
    watch: Watch,
    *,
    kills: int = 10,
    steps: int = 60,
    seed: int = 0,
    place: Path | None = None,
) -> ResumeProof:
    """plan: its path. train: what each process does. steps: to compare, of the planned run. seed: of the instants.

    Whatever the runs write is in a folder in `place`, or where the system has temporary files, which is removed
    afterwards. Raises what makes a run fail, and Hang for one that stands still.
    """
    with TemporaryDirectory(prefix="hasten-", dir=place) as root:
        return _Trial(Path(root), job, plan, train, watch, steps).proof(kills, seed)


@dataclass(frozen=True, slots=True)
class _Reference:
    folder: Path
    steps: int
    complete: bool  # whether its planned end came before the step at which it would have been asked to end
    total_steps: int | None
    lines: list[dict[str, Any]]
    times: RunTimes


class _Trial:
    def __init__(self, root: Path, job: str, plan: str | None, train: Train, watch: Watch, steps: int) -> None:
        self._root, self._train_run, self._watch, self._runs = root, train, watch, 0
        self._silent_seconds, self._may_be_silent = 0.0, LONGEST_SECONDS
        self._step_seconds = 0.0  # of the fastest run so far: the first process is often the slowest
        every = max(1, min(steps // SAVES, MOST_BETWEEN_SAVES))
        self._errand = Errand(job=job, plan=plan, folder="", resumes=False, steps=steps, save_every=every)

    def proof(self, kills: int, seed: int) -> ResumeProof:
        reference = self._reference(UNDISTURBED[0])
        if reference.steps < LEAST_SAVES * self._errand.save_every and self._errand.save_every > 1:
            self._errand = replace(self._errand, save_every=max(1, reference.steps // LEAST_SAVES))
            reference = self._reference(UNDISTURBED[0])
        self._may_be_silent = min(max(MANY_TIMES * self._silent_seconds, LEAST_SECONDS), LONGEST_SECONDS)
        self._step_seconds = reference.times.step_seconds
        coming, made = draw(kills, seed), list[Kill]()
        runs = idle = 0
        found: tuple[Difference, int] | None = None
        while coming and found is None and idle < IDLE_RUNS:
            left, runs = len(coming), runs + 1
            found = self._killed_run(reference, coming, made, kills)
            idle = idle + 1 if len(coming) == left else 0
        again = self._reference(UNDISTURBED[1]) if found is not None else None
        return ResumeProof(
            steps=reference.steps,
            total_steps=reference.total_steps,
            save_every=self._errand.save_every,
            wanted=kills,
            kills=tuple(made),
            runs=runs,
            lines=len(reference.lines),
            extent=extent_of(_states(reference.folder)),
            times=reference.times,
            difference=found[0] if found else None,
            resumed_at=found[1] if found else None,
            itself=_compared(reference, again.folder, ended=True) if again else None,
        )

    def _reference(self, what: str) -> _Reference:
        """An undisturbed run."""
        folder = self._new_folder()
        saves = _Saves(folder)
        process, _ = self._train(replace(self._errand, folder=str(folder)), what, saves)
        assert process.loaded_at is not None
        assert process.going_at is not None
        steps = _newest_step(folder)
        times = RunTimes(
            starting_seconds=process.loaded_at - process.began_at,
            resuming_seconds=process.going_at - process.loaded_at,
            step_seconds=_seconds_of_a_step(process),
            save_seconds=max(median(saves.seconds), _LEAST_SAVE_SECONDS) if saves.seconds else _LEAST_SAVE_SECONDS,
        )
        return _Reference(folder, steps, process.complete is True, process.total_steps, _lines(folder), times)

    def _killed_run(
        self, reference: _Reference, coming: list[Instant], made: list[Kill], wanted: int
    ) -> tuple[Difference, int] | None:
        """From its beginning to its end, killed at the coming instants, as far as it reaches them. The first
        difference, and the step from which its process had resumed."""
        folder = self._new_folder()
        errand = replace(self._errand, folder=str(folder))
        while True:
            saves = _Saves(folder)
            saved = _newest_step(folder)
            what = f"resuming from step {saved:,}" if errand.resumes else "the run to be killed"
            times = replace(reference.times, step_seconds=self._step_seconds)
            aim = _Aim(coming[0], coming, times, reference.steps - saved) if coming else None
            try:
                process, was_killed = self._train(errand, what, saves, aim)
            except HastenError as error:
                if errand.resumes:
                    error.what = f"killed, the run was to resume from step {saved:,}: {error.what}"
                raise
            if was_killed:
                step = process.step if process.going_at is not None else saved
                made.append(Kill(phase=_phase(process, saves), step=step, saved_step=_newest_step(folder)))
                del coming[0]
                self._watch.killed(len(made), wanted, made[-1])
            # A run that was asked to end, and killed when it had saved for that, has nothing left to do.
            asked = not reference.complete and _newest_step(folder) >= reference.steps
            ended = process.complete is not None or asked
            difference = _compared(reference, folder, ended=ended)
            if difference is not None:
                return difference, process.first_step
            if ended:
                if aim is not None and not was_killed:
                    coming[0] = missed(coming[0])
                    self._step_seconds = min(self._step_seconds, _seconds_of_a_step(process))
                return None
            errand = replace(errand, resumes=True)

    def _train(self, errand: Errand, what: str, saves: _Saves, aim: _Aim | None = None) -> tuple[RunProcess, bool]:
        """Let a process train until it ends, or is killed; and whether it was killed."""
        process = RunProcess(errand, self._train_run, self._root)
        try:
            while process.exit_code is None:
                at = aim.instant(process, saves) if aim is not None and process.complete is None else None
                left = CHECK_SECONDS if at is None else at - time.monotonic()
                if left <= 0:
                    return process, process.kill()
                watches_saves = process.going_at is not None and (aim is None or aim.waits_for_save)
                process.listen(min(left, _SAVE_CHECK_SECONDS if watches_saves else CHECK_SECONDS))
                if watches_saves:
                    saves.check(time.monotonic())
                self._check_silence(process)
                steps = min(errand.steps, process.total_steps or errand.steps)
                self._watch.trains(what, process.step, max(steps, process.step))
            return process, False
        finally:
            process.end()

    def _check_silence(self, process: RunProcess) -> None:
        silent = time.monotonic() - process.heard_at
        self._silent_seconds = max(self._silent_seconds, silent)
        if silent > self._may_be_silent:
            raise process.hung(silent)

    def _new_folder(self) -> Path:
        self._runs += 1
        return self._root / f"run-{self._runs}"


@dataclass(frozen=True, slots=True)
class _Aim:
    target: Instant
    coming: list[Instant]
    times: RunTimes
    steps_left: int

    @property
    def waits_for_save(self) -> bool:
        return self.target.phase is Phase.SAVING

    def instant(self, process: RunProcess, saves: _Saves) -> float | None:
        """When to kill; None where that is not known yet."""
        target, times, left = self.target, self.times, self.steps_left
        match target.phase:
            case Phase.STARTING:
                return process.began_at + target.share * times.starting_seconds
            case Phase.GOING_ON if process.loaded_at is not None:
                return process.loaded_at + target.share * times.resuming_seconds
            case Phase.TRAINING if process.going_at is not None:
                return process.going_at + training_seconds(target.share, times, left, self.coming)
            case Phase.SAVING if process.going_at is not None:
                since = process.going_at + training_seconds(target.before_save, times, left, self.coming)
                began = saves.began_after(since)
                return None if began is None else began + target.share * times.save_seconds
            case _:
                return None


class _Saves:
    """Sees checkpoints being written, from outside: while one is, or is being removed, its folder has a name that no
    checkpoint has. seconds: of each that was seen from its beginning to its end."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "checkpoints"
        self._before = self._unfinished()  # that an earlier process has left
        self._began: dict[str, float] = {}
        self._open: set[str] = set()
        self.seconds: list[float] = []

    def check(self, now: float) -> None:
        names = self._unfinished() - self._before
        for name in names - self._open:
            self._began[name] = now
        self.seconds += [now - self._began[name] for name in self._open - names]
        self._open = names

    def began_after(self, since: float) -> float | None:
        return min((began for began in self._began.values() if began >= since), default=None)

    @property
    def under_way(self) -> bool:
        return bool(self._unfinished() - self._before)

    def _unfinished(self) -> set[str]:
        try:
            return {each.name for each in self._folder.iterdir() if each.name.startswith(".")}
        except OSError:  # there is none yet
            return set()


def _seconds_of_a_step(process: RunProcess) -> float:
    """Of a run that has ended: of everything since its first step."""
    assert process.going_at is not None
    return (process.heard_at - process.going_at) / max(process.step - process.first_step, 1)


def _phase(process: RunProcess, saves: _Saves) -> Phase:
    """In which it was killed, by its messages and by the disk."""
    if saves.under_way:
        return Phase.SAVING
    if process.going_at is not None:
        return Phase.TRAINING
    return Phase.STARTING if process.loaded_at is None else Phase.GOING_ON


def _compared(reference: _Reference, folder: Path, *, ended: bool) -> Difference | None:
    difference = first_in_lines(reference.lines, _lines(folder), whole=ended)
    if difference is not None or not ended:
        return difference
    return first_in_states(_states(reference.folder), _states(folder), step=reference.steps)


def _lines(folder: Path) -> list[dict[str, Any]]:
    log = folder / "metrics.jsonl"
    return lines_of(log.read_bytes()) if log.exists() else []


def _newest_step(folder: Path) -> int:
    """Of its checkpoints, by their names; 0 where there is none."""
    return max((each.step for each in RunFolder(folder).store.found()), default=0)


def _states(folder: Path) -> Mapping[str, Any]:
    """Raises StorageFailed where the newest checkpoint is not whole."""

    def damaged(checkpoint: Any, error: StorageFailed) -> None:
        raise error

    loaded = RunFolder(folder).store.newest(damaged)
    if loaded is None:
        raise StorageFailed("a run has ended without a checkpoint", where=str(folder))
    return {name: loaded.states[name] for name in _STATES}
