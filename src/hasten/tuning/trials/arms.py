"""Arms of a search: processes that each hold the job under one plan. One runs at a time; all others are stopped.

Whatever an arm does, it fails alone, as an ArmFailed with its class (trial_outcome.py), and is ended at once, so that
what it held is free for the others. Ten times a second, the process that waits for an answer checks what is left of the
machine: where that is too little, the arm ends before the machine is full, whoever has taken it.
"""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from hasten.errors import Misconfigured
from hasten.facts.formatting import byte_size
from hasten.facts.job import SEED_THE_DATA
from hasten.facts.machine import free_memory, killed_for_memory
from hasten.facts.plan import Plan
from hasten.facts.plan_file import plan_to_toml
from hasten.measure.paired_timing import Window
from hasten.training.setup.job_options import NONE_GIVEN, JobOptions
from hasten.tuning.trials.other_programs import OtherPrograms
from hasten.tuning.trials.preloaded_libraries import libraries_of
from hasten.tuning.trials.process_seconds import IMPORTED_BY_TRAIN, import_seconds
from hasten.tuning.trials.process_tree import all_of, ended_for_memory, how_it_ended, resident_bytes
from hasten.tuning.trials.trial_outcome import ArmFailed, Outcome, OutOfTime, SentError
from hasten.tuning.trials.trial_process import END_SECONDS, TrialProcess

SERVES_JOBS = "hasten.tuning.trials.trial_requests:serve"
LEAST_MEMORY, LEAST_DISK = 0.2, 0.5  # shares of what was free at an arm's start


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """Seconds that an arm may take to be built, and for one request, such as a window, before it is called hung."""

    build_seconds: float = 3600.0
    window_seconds: float = 600.0


def room_for(bytes_of_one: int, free_bytes: int) -> int:
    """How many arms of this size fit beside each other into what is free, with a rest for everything else."""
    return int(free_bytes * (1 - LEAST_MEMORY)) // max(1, bytes_of_one)


class LimitCheck:
    """Of a process with all below it, and of its folder."""

    def __init__(self, pid: int, folder: str) -> None:
        self._pid, self._folder = pid, folder
        self._least_memory = int(free_memory() * LEAST_MEMORY)
        self._least_disk = int(shutil.disk_usage(folder).free * LEAST_DISK)

    @property
    def held_bytes(self) -> int:
        """Of memory; pages that several processes share are counted in each."""
        return sum(map(resident_bytes, all_of(self._pid)))

    def exceeded(self) -> tuple[Outcome, str] | None:
        """Why the arm has to end; None where it may continue."""
        if (left := free_memory()) < self._least_memory:
            least = byte_size(self._least_memory)
            what = f"the machine has {byte_size(left)} of memory left, and {least} must stay free"
            return Outcome.OUT_OF_MEMORY, f"{what}; the arm holds {byte_size(self.held_bytes)}"
        with suppress(OSError):  # the job has deleted the folder
            if (left := shutil.disk_usage(self._folder).free) < self._least_disk:
                least = byte_size(self._least_disk)
                return Outcome.DISK_FULL, f"its disk has {byte_size(left)} left, and {least} must stay free"
        return None


CHECK_SECONDS = 0.1  # between two checks of what a running arm holds


class Arm:
    """One process with the job under one plan. Made by Arms.start; stopped outside of its own calls.

    build_seconds: as the arm itself has timed it. data: digests of the job's data as it was built there. notices: of
    loading the job. turns: seconds of every wait for an epoch's first batch but the run's first, which is first_turn.
    interruptions: seconds of every other time between two steps in which a script has evaluated or saved, among
    steps_seen.
    peak_bytes: the most memory held, as its last window said.
    """

    def __init__(self, name: str, process: TrialProcess, limits: Limits, ends_at: float = math.inf) -> None:
        """Waits until the job is built. Raises ArmFailed. ends_at: by time.monotonic(); a call that still waits then
        raises OutOfTime."""
        self.name, self._process, self._limits, self._ends_at = name, process, limits, ends_at
        self._check, self._check_at = LimitCheck(process.child.pid, process.folder), 0.0
        self._killed_before, self._failure = killed_for_memory(), None
        self.turns, self.interruptions = list[float](), list[float]()
        self.steps_seen = self.peak_bytes = 0
        self.first_turn: float | None = None
        with self._failing_alone():
            answer = self._answer_within(limits.build_seconds)
            self.build_seconds, self.data = float(answer["seconds"]), dict[str, str](answer["data"])
            self.notices = list[str](answer["notices"])

    def window(self, steps: int, limit_seconds: float | None = None) -> Window:
        """Raises ArmFailed for whatever keeps it from a window, and for one without a step (trap 48)."""
        found = self.ask("window", limit_seconds, steps=steps)
        with self._failing_alone():
            if not found["steps"]:
                raise ArmFailed(self.name, Outcome.NOTHING_RAN, "no optimizer step was taken")
            for epoch, seconds in found["turns"]:
                if epoch:
                    self.turns.append(seconds)
                elif self.first_turn is None:
                    self.first_turn = seconds
            self.interruptions += found["interruptions"]
            self.steps_seen += found["steps"] + len(found["turns"]) + len(found["interruptions"])
            self.peak_bytes = found["peak_bytes"]
            return Window(arm=self.name, steps=found["steps"], seconds=found["seconds"])

    def taken_out(self) -> tuple[list[float], list[float], int]:
        """Turns, interruptions and steps seen since the last call, which the arm then has no more."""
        found = self.turns, self.interruptions, self.steps_seen
        self.turns, self.interruptions, self.steps_seen = [], [], 0
        return found

    def ask(self, do: str, limit_seconds: float | None = None, **fields: Any) -> dict[str, Any]:
        """The answer to one of trial_requests.REQUESTS. Raises ArmFailed for whatever keeps it from one, and once it
        has failed, always."""
        if self._failure is not None:
            raise self._failure
        with self._failing_alone():
            self._process.resume()
            self._process.child.messages.send({"do": do, **fields})
            return self._answer_within(self._limits.window_seconds if limit_seconds is None else limit_seconds)

    @property
    def held_bytes(self) -> int:
        """Of memory, that it and its processes hold now; pages that they share are counted in each."""
        return self._check.held_bytes

    @contextmanager
    def _failing_alone(self) -> Iterator[None]:
        """Stop it afterwards. Whatever goes wrong becomes an ArmFailed, and ends the arm: it may hold memory, or a
        device."""
        try:
            yield
        except ArmFailed as failure:
            self._failure = failure
        except ConnectionError:
            self._failure = self._died()
        except (KeyError, TypeError, ValueError, OSError) as error:
            what = f"its answer cannot be read: {type(error).__name__}: {error}"
            self._failure = ArmFailed(self.name, Outcome.CRASHED, what)
        finally:
            self._process.stop()
        if self._failure is not None:
            self._process.end()
            raise self._failure

    def _answer_within(self, seconds: float) -> dict[str, Any]:
        """Meanwhile check what it holds."""
        child, until = self._process.child, min(time.monotonic() + seconds, self._ends_at)
        while (answer := child.messages.receive()) is None:
            if child.messages.ended or child.exit_code is not None:
                raise self._died()
            left = until - time.monotonic()
            if left <= 0 and until == self._ends_at:
                raise OutOfTime
            if left <= 0:
                raise ArmFailed(self.name, Outcome.HUNG, f"no answer within {seconds:g} s; {child.standing()}")
            child.listen(min(left, CHECK_SECONDS))
            if time.monotonic() >= self._check_at:  # of windows shorter than that, one in several is checked
                if exceeded := self._check.exceeded():
                    raise ArmFailed(self.name, *exceeded)
                self._check_at = time.monotonic() + CHECK_SECONDS
        if "failed" in answer:
            error = SentError(**answer["error"])
            raise ArmFailed(self.name, Outcome(answer["failed"]), answer["message"], error)
        return answer

    def _died(self) -> ArmFailed:
        code = self._process.child.exit_code_within(END_SECONDS)
        if code is not None and ended_for_memory(code, self._killed_before):
            return ArmFailed(self.name, Outcome.OUT_OF_MEMORY, "the system killed it because memory was full")
        how = "has closed its connection" if code is None else how_it_ended(code)
        return ArmFailed(self.name, Outcome.CRASHED, f"it {how}")


class Arms:
    """Starts the arms of a search. job: its name, path/file.py:function, which every arm loads for itself. place: where
    a search may put its files; None for the system's place for temporary files. options: that every arm loads it with.
    launch: starts the process of an arm under a plan; None for that of a job. imports: modules that a whole run
    imports beside those of the job's file.
    """

    def __init__(
        self,
        job: str,
        limits: Limits | None = None,
        place: Path | None = None,
        other_programs: OtherPrograms | None = None,
        options: JobOptions = NONE_GIVEN,
        launch: Callable[[Plan], TrialProcess] | None = None,
        imports: Sequence[str] = IMPORTED_BY_TRAIN,
    ) -> None:
        self._job, self._limits, self.place, self.options = job, limits or Limits(), place, options
        self.other_programs = other_programs or OtherPrograms(None)
        self._libraries, self._imports = libraries_of(job), imports
        self._launch = launch or self._launch_job
        self._process_seconds: float | None = None
        self._data: dict[str, str] | None = None  # that the first arm has built
        self._ends_at = math.inf

    @contextmanager
    def start(self, name: str, plan: Plan) -> Iterator[Arm]:
        """Build the job by a plan in a process of its own, of which nothing is left afterwards. Raises ArmFailed when
        that fails, and Misconfigured when the job builds other data than in an earlier arm: then no two arms compare.
        """
        process = self._launch(plan)
        try:
            arm = Arm(name, process, self._limits, self._ends_at)
            self._check_data(arm.data)
            yield arm
        finally:
            process.end()

    @contextmanager
    def ending_within(self, seconds: float) -> Iterator[None]:
        """Whatever arms do in this block raises OutOfTime when it has taken so long."""
        self._ends_at = time.monotonic() + seconds
        try:
            yield
        finally:
            self._ends_at = math.inf

    def _launch_job(self, plan: Plan) -> TrialProcess:
        return TrialProcess(SERVES_JOBS, self._libraries, self._job, plan_to_toml(plan), self.options)

    def _check_data(self, data: dict[str, str]) -> None:
        if self._data is None:
            self._data = data
        if other := [name for name in self._data if data.get(name) != self._data[name]]:
            what = f"builds different data each time: {' and '.join(other)} had different values in an earlier trial"
            raise Misconfigured(what, where=self._job, fix=SEED_THE_DATA)

    def process_seconds(self, arm: Arm) -> float:
        """That a process of `hasten train` takes around its training, whatever the plan: imports, and the checkpoint of
        its end as this arm saves it. Measured once. Raises ArmFailed."""
        if self._process_seconds is None:
            saving = self.other_programs.undisturbed(lambda: float(arm.ask("saving")["seconds"]))
            importing = partial(import_seconds, self._libraries, self._imports)
            self._process_seconds = saving + self.other_programs.undisturbed(importing)
        return self._process_seconds
