"""Whether a run that is killed at any instant resumes as if nothing had happened: a trial on the job itself.

One run is not disturbed, as the reference. Another is killed again and again, with all its processes, and resumed each
time. Both are asked to end after the same step, by SIGTERM as a scheduler asks, so that each saves a checkpoint at
exactly that step. The log of the second run is compared after every kill, and at the end everything in both
checkpoints. Where they differ, a second reference is run; where that one differs as well, the job is not deterministic.

A process spends most of its time on what cannot fail: it loads libraries, and it computes. So instants are drawn by
phase, in shares of what the undisturbed run took, and the two phases that touch the disk are hit as often as the two
that do not.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, Literal, Protocol

from hasten.errors import HastenError, StorageFailed
from hasten.measure.run_difference import Difference, first_in_lines, first_in_states, lines_of
from hasten.regular_files import read_regular
from hasten.training.run_folder.run_directory import RunFolder
from hasten.tuning.resume.run_process import Errand, RunProcess, Train


class Phase(Enum):
    """Of a process that trains, in order; saving begins again and again."""

    STARTING = "while its process started"
    GOING_ON = "before its first step"
    TRAINING = "while it trained"
    SAVING = "while it saved"


ADVANCING = (Phase.TRAINING, Phase.SAVING)  # those in which the run advances
_TURNS = (
    *(Phase.TRAINING, Phase.GOING_ON, Phase.SAVING, Phase.TRAINING, Phase.STARTING),
    *(Phase.GOING_ON, Phase.TRAINING, Phase.SAVING, Phase.GOING_ON, Phase.TRAINING),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Instant:
    """share: of the phase, 0 to 1; where the phase is saving, of the training before the save as well."""

    phase: Phase
    share: float


@dataclass(frozen=True, kw_only=True, slots=True)
class RunTimes:
    """Of an undisturbed run: its process until its libraries were loaded, from there until the first step, one step
    with its share of everything else, and one save."""

    starting_seconds: float
    resuming_seconds: float
    step_seconds: float
    save_seconds: float


def draw(kills: int, seed: int) -> list[Instant]:
    """As many instants, in the order in which they are used. The first one lets the run come to its first steps."""
    chance = random.Random(seed)
    first, *later = (_TURNS[number % len(_TURNS)] for number in range(kills))
    chance.shuffle(later)
    return [Instant(phase=phase, share=chance.random()) for phase in [first, *later]]


def missed(instant: Instant) -> Instant:
    """Another one for an instant that the run did not come to, because it ended before."""
    return Instant(phase=Phase.TRAINING, share=instant.share / 2)


def training_seconds(times: RunTimes, steps_left: int, coming: Sequence[Instant]) -> float:
    """How long to let a process train: together the kills that are still coming use up the run, whichever shares they
    have. coming: this one and those after it."""
    advancing = sum(each.phase in ADVANCING for each in coming)
    return 2 * coming[0].share * steps_left * times.step_seconds / (advancing + 1)


SAVES = 12  # in a run, about
MOST_BETWEEN_SAVES = 10  # steps
UNDISTURBED = ("reference run", "second reference run")
IDLE_RUNS = 3  # that end before anything could kill them; another one would as well
LONGEST_SECONDS = 3600.0  # that a run may be silent: while it builds the job, or is in one step or evaluation
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
    without the references. lines: of the log, that were compared. resumed_at: the step from which the process had
    resumed that differed. itself: where two references differ."""

    steps: int
    total_steps: int | None
    save_every: int
    wanted: int
    kills: tuple[Kill, ...]
    runs: int
    lines: int
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
        every = max(1, min(steps // SAVES, MOST_BETWEEN_SAVES))
        self._errand = Errand(job=job, plan=plan, folder="", resumes=False, steps=steps, save_every=every)

    def proof(self, kills: int, seed: int) -> ResumeProof:
        reference = self._reference(UNDISTURBED[0])
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
        times = RunTimes(
            starting_seconds=process.loaded_at - process.began_at,
            resuming_seconds=process.going_at - process.loaded_at,
            step_seconds=(process.heard_at - process.going_at) / max(process.step - process.first_step, 1),
            save_seconds=max(median(saves.seconds or [0.0]), _LEAST_SAVE_SECONDS),
        )
        steps, complete = _newest_step(folder), process.complete is True
        return _Reference(folder, steps, complete, process.total_steps, _lines(folder), times)

    def _killed_run(
        self, reference: _Reference, coming: list[Instant], made: list[Kill], wanted: int
    ) -> tuple[Difference, int] | None:
        """From its beginning to its end, killed at the coming instants, as far as it reaches them. The first
        difference, and the step from which its process had resumed."""
        folder = self._new_folder()
        errand = replace(self._errand, folder=str(folder))
        while True:
            saves, saved = _Saves(folder), _newest_step(folder)
            what = f"resuming from step {saved:,}" if errand.resumes else "the run to be killed"
            at = None
            if coming:
                seconds = training_seconds(reference.times, reference.steps - saved, coming)
                at = partial(_kill_at, coming[0], reference.times, seconds)
            try:
                process, was_killed = self._train(errand, what, saves, at)
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
            ended = process.complete is not None or (not reference.complete and _newest_step(folder) >= reference.steps)
            difference = _compared(reference, folder, ended=ended)
            if difference is not None:
                return difference, process.first_step
            if ended:
                if coming and not was_killed:
                    coming[0] = missed(coming[0])
                return None
            errand = replace(errand, resumes=True)

    def _train(
        self, errand: Errand, what: str, saves: _Saves, kill_at: KillAt | None = None
    ) -> tuple[RunProcess, bool]:
        """Let a process train until it ends, or is killed; and whether it was killed."""
        process = RunProcess(errand, self._train_run, self._root)
        try:
            while process.exit_code is None:
                at = kill_at(process, saves) if kill_at is not None and process.complete is None else None
                left = CHECK_SECONDS if at is None else at - time.monotonic()
                if left <= 0:
                    return process, process.kill()
                process.listen(min(left, CHECK_SECONDS if process.going_at is None else _SAVE_CHECK_SECONDS))
                if process.going_at is not None:
                    saves.check(time.monotonic())
                silent = time.monotonic() - process.heard_at
                if silent > LONGEST_SECONDS:
                    raise process.hung(silent)
                steps = min(errand.steps, process.total_steps or errand.steps)
                self._watch.trains(what, process.step, max(steps, process.step))
            return process, False
        finally:
            process.end()

    def _new_folder(self) -> Path:
        self._runs += 1
        return self._root / f"run-{self._runs}"


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
        self._began |= dict.fromkeys(names - self._open, now)
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


KillAt = Callable[[RunProcess, _Saves], float | None]
"""When to kill a process; None where that is not known yet."""


def _kill_at(
    target: Instant, times: RunTimes, training_seconds: float, process: RunProcess, saves: _Saves
) -> float | None:
    match target.phase:
        case Phase.STARTING:
            return process.began_at + target.share * times.starting_seconds
        case Phase.GOING_ON if process.loaded_at is not None:
            return process.loaded_at + target.share * times.resuming_seconds
        case Phase.TRAINING if process.going_at is not None:
            return process.going_at + training_seconds
        case Phase.SAVING if process.going_at is not None:
            began = saves.began_after(process.going_at + training_seconds)
            return None if began is None else began + target.share * times.save_seconds
        case _:
            return None


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
    return lines_of(read_regular(log)) if log.exists() else []


def _newest_step(folder: Path) -> int:
    """Of its checkpoints, by their names; 0 where there is none."""
    return max((each.step for each in RunFolder(folder).store.found()), default=0)


def _states(folder: Path) -> Mapping[str, Any]:
    """Raises StorageFailed where the newest checkpoint is not whole."""

    def damaged(checkpoint: Any, error: StorageFailed) -> None:
        raise error

    loaded = RunFolder(folder).store.newest(damaged)
    if loaded is None:
        raise StorageFailed("a run ended without a checkpoint", where=str(folder))
    return {name: loaded.states[name] for name in _STATES}
