"""Arms of a trial: processes that each hold the job under one plan, of which one runs while all others are stopped.

Every arm is forked from a server that has loaded torch and hasten and nothing of the user's (trial_process.py), so that
it begins at once and inherits neither data nor settings. It is stopped with all that it started when its window is
over, and is killed with all of it at the end, also when this process is killed.

Nothing that an arm does ends the search: it fails alone, as an ArmFailed with its class (fate.py), and is ended at
once, so that what it held is free for the others.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from hasten.errors import Misconfigured
from hasten.facts.job import SEED_THE_DATA
from hasten.facts.machine import free_memory, killed_for_memory
from hasten.facts.plan import Plan
from hasten.facts.plan_file import plan_to_toml
from hasten.measure.paired_timing import Window
from hasten.tune.trials.libraries import libraries_of
from hasten.tune.trials.messages import Closed, Garbled
from hasten.tune.trials.other_programs import OtherPrograms
from hasten.tune.trials.output_tail import how_it_ended
from hasten.tune.trials.process_seconds import import_seconds
from hasten.tune.trials.trial_limits import Limits as Limits
from hasten.tune.trials.trial_limits import Watch, room_for
from hasten.tune.trials.trial_outcome import ArmFailed, Fate, Told
from hasten.tune.trials.trial_process import Assignment, NotStarted, TrialProcess, new_folder

LOOK_SECONDS = 0.1  # between two looks at what a running arm holds
SLOW_ONCE = frozenset({"compile", "cache", "in_memory", "cudnn_autotune"})  # techniques
MANY_TIMES, LEAST_BUILD_SECONDS, LEAST_WINDOW_SECONDS = 20.0, 300.0, 120.0  # before an arm is called hung


class Arm:
    """One process with the job under one plan. Made by Arms.start; stopped outside of its own calls.

    build_seconds: as the arm itself has timed it. data: digests of the job's data as it was built there. turns: seconds
    of every wait for an epoch's first batch but the run's first, which is first_turn. peak_bytes: the most memory held,
    as its last window said.
    """

    def __init__(self, name: str, process: TrialProcess, limits: Limits) -> None:
        self.name, self._process, self._limits = name, process, limits
        self._watch, self._look_at = Watch(process.pid, process.folder, limits), 0.0
        self._killed_before, self._failure = killed_for_memory(), None
        self.turns, self.losses, self.peak_bytes, self.build_seconds = list[float](), list[float](), 0, 0.0
        self.first_turn: float | None = None
        self.data = dict[str, str]()

    def wait_until_built(self) -> None:
        """Raises ArmFailed."""
        with self._failing_alone(), _understood():
            try:
                answer = self._answer_within(self._limits.build_seconds)
                self.build_seconds, self.data = float(answer["seconds"]), {**answer["data"]}
            finally:
                self._process.stop()

    def window(self, steps: int) -> Window:
        """Raises ArmFailed for whatever keeps it from a window, and for one without a step (trap 48)."""
        found = self.ask("window", steps=steps)
        with self._failing_alone(), _understood():
            if not found["steps"]:
                raise ArmFailed(self.name, Fate.NOTHING_RAN, "not one optimizer step was taken")
            for epoch, seconds in found["turns"]:
                if epoch:
                    self.turns.append(seconds)
                elif self.first_turn is None:
                    self.first_turn = seconds
            self.losses += found["losses"]
            self.peak_bytes = found["peak_bytes"]
            return Window(arm=self.name, steps=found["steps"], seconds=found["seconds"])

    def ask(self, do: str, limit_seconds: float | None = None, **fields: Any) -> dict[str, Any]:
        """The answer to one of serve.REQUESTS. Raises ArmFailed for whatever keeps it from one, and once it has failed,
        always."""
        if self._failure is not None:
            raise self._failure
        with self._failing_alone():
            self._process.resume()
            try:
                self._process.messages.send({"do": do, **fields})
                return self._answer_within(self._limits.window_seconds if limit_seconds is None else limit_seconds)
            finally:
                self._process.stop()

    def end(self) -> None:
        """Kill it and all that it started; what it held is free afterwards. Nothing where it has ended."""
        self._process.end()

    @property
    def printed(self) -> str:
        """The end of what it has printed."""
        return self._process.printed

    @property
    def held_bytes(self) -> int:
        """The most memory that it and its processes were seen to hold, at the latest now; pages that they share are
        counted in each."""
        self._watch.look()
        return self._watch.most_bytes

    @contextmanager
    def _failing_alone(self) -> Iterator[None]:
        """Whatever goes wrong becomes an ArmFailed, and ends the arm: a failed one may hold memory, or a device."""
        try:
            yield
        except ArmFailed as failure:
            self._failure = failure
        except Closed:
            self._failure = self._died()
        except Garbled as garbled:
            self._failure = ArmFailed(self.name, Fate.CRASHED, f"it sent what is no answer: {garbled}")
        if self._failure is not None:
            self.end()
            raise self._failure

    def _answer_within(self, seconds: float) -> dict[str, Any]:
        """Meanwhile what it prints is read, and what it holds is looked at."""
        until = time.monotonic() + seconds
        while (answer := self._process.messages.receive()) is None:
            if self._process.messages.ended or self._process.exit_code is not None:
                raise self._died()
            left = until - time.monotonic()
            if left <= 0:
                raise ArmFailed(self.name, Fate.HUNG, f"no answer within {seconds:g} s; {self._process.standing()}")
            self._process.listen(min(left, LOOK_SECONDS))
            if time.monotonic() >= self._look_at:  # of windows shorter than that, one in several is looked at
                self._look()
        if "failed" in answer:
            with _understood():
                told = Told(**answer["told"]) if answer["told"] else None
                raise ArmFailed(self.name, Fate(answer["failed"]), str(answer["message"]), told)
        return answer

    def _look(self) -> None:
        if too_much := self._watch.look():
            raise ArmFailed(self.name, *too_much)
        self._look_at = time.monotonic() + LOOK_SECONDS

    def _died(self) -> ArmFailed:
        code = self._process.exit_code_soon()
        if code is None:
            return ArmFailed(self.name, Fate.CRASHED, "it lives, but has closed the connection that it answers on")
        killed, before = killed_for_memory(), self._killed_before
        if code == -signal.SIGKILL and killed is not None and before is not None and killed > before:
            return ArmFailed(self.name, Fate.OUT_OF_MEMORY, "the system has killed it, as memory was full")
        return ArmFailed(self.name, Fate.CRASHED, f"it {how_it_ended(code)}")


@contextmanager
def _understood() -> Iterator[None]:
    """An answer that lacks what it should say is garbled."""
    try:
        yield
    except (KeyError, TypeError, ValueError) as error:
        raise Garbled(f"{type(error).__name__}: {error}") from None


class Arms:
    """Starts the arms of a search. job: its name, path/file.py:function, which every arm loads for itself. place: where
    what a search keeps on the disk may lie meanwhile; None: where the system has temporary files.
    """

    def __init__(
        self,
        job: str,
        limits: Limits | None = None,
        place: Path | None = None,
        other_programs: OtherPrograms | None = None,
    ) -> None:
        self._job, self._given, self.place = job, limits or Limits(), place
        self.other_programs = other_programs or OtherPrograms(None)
        self._limits = self._given
        self._libraries: Sequence[str] = libraries_of(job)
        self._process_seconds: float | None = None
        self._data: dict[str, str] | None = None  # that the first arm has built

    def __enter__(self) -> Arms:
        return self

    def __exit__(self, *exception: object) -> None:
        """Nothing is held between two arms."""

    @contextmanager
    def start(self, name: str, plan: Plan) -> Iterator[Arm]:
        """Build the job by a plan in a process of its own, of which nothing is left afterwards. Raises ArmFailed when
        that fails, and Misconfigured when the job builds other data than in an earlier arm: then no two arms compare.
        """
        process, slow_once = self._started(name, plan), any(each.choice.technique in SLOW_ONCE for each in plan.choices)
        try:
            arm = Arm(name, process, self._given if slow_once else self._limits)
            arm.wait_until_built()
            self._check_data(arm.data)
            yield arm
        finally:
            process.end()

    def _check_data(self, data: dict[str, str]) -> None:
        if self._data is None:
            self._data = data
        if other := [name for name in self._data if data.get(name) != self._data[name]]:
            what = (
                f"builds other data each time it is built: {' and '.join(other)} had other values in an earlier trial"
            )
            raise Misconfigured(what, where=self._job, fix=SEED_THE_DATA)

    def _started(self, name: str, plan: Plan) -> TrialProcess:
        folder = new_folder()
        assignment = Assignment(
            job=self._job,
            plan=plan_to_toml(plan),
            environment=environment_within(folder),
            path=sys.path,
            arguments=sys.argv,
            folder=_here(),
        )
        try:
            return TrialProcess(assignment, folder, self._libraries)
        except NotStarted as error:
            raise ArmFailed(name, Fate.CRASHED, f"it was not started: {error}") from None

    def process_seconds(self, arm: Arm) -> float:
        """That a process of `hasten train` takes around its training, whatever the plan: imports, and the checkpoint of
        its end as this arm saves it. Measured once. Raises ArmFailed."""

        def measured() -> float:
            return import_seconds(libraries_of(self._job)) + float(arm.ask("saving")["seconds"])

        if self._process_seconds is None:
            self._process_seconds = self.other_programs.undisturbed(measured)
        return self._process_seconds

    def expect(self, *, build_seconds: float, request_seconds: float) -> None:
        """The job as it is took so long: an arm that takes many times that, and longer than a job should, is hung.
        Limits that were given stay, and hold for those that are slow once by nature."""
        self._limits = replace(
            self._given,
            build_seconds=min(self._given.build_seconds, max(LEAST_BUILD_SECONDS, MANY_TIMES * build_seconds)),
            window_seconds=min(self._given.window_seconds, max(LEAST_WINDOW_SECONDS, MANY_TIMES * request_seconds)),
        )

    def room(self, bytes_of_one: int) -> int:
        """How many arms that hold so many bytes (Arm.held_bytes) fit into the memory that is free now."""
        return room_for(bytes_of_one, free_memory())


def environment_within(folder: str) -> dict[str, str]:
    """This process's environment, with every place for caches and temporary files inside a folder: no arm finds what
    another has made, or leaves something (trap 49). Nor does it write beside the user's files what Python compiled."""
    ours = ("HASTEN_CACHE", "TMPDIR", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
    return {**os.environ, **dict.fromkeys(ours, folder), "PYTHONDONTWRITEBYTECODE": "1"}


def _here() -> str | None:
    with suppress(OSError):  # it was deleted
        return os.getcwd()
    return None
