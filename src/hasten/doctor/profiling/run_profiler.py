"""A profile of a running job: some of its real steps are taken, measured and discarded.

Three things are timed in turn, round by round, so that other load on the machine falls on all of them alike: steps of
the job, reading alone, and steps whose batches are there already. The first against the last is what free loading
gains. The stack is sampled in windows of their own, which are not timed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass, field
from statistics import median, median_low
from threading import get_ident
from typing import Any

import torch

from hasten.doctor.profiling.checkpoint_cost import checkpoint_cost
from hasten.doctor.profiling.compiler_log import compiled, compiler_notes
from hasten.doctor.profiling.device_use import cuda_use
from hasten.doctor.profiling.larger_batches import larger_batches
from hasten.doctor.profiling.line_times import LineTimes, least_times, line_of, lines_of_steps
from hasten.doctor.profiling.operation_counts import Operations, least_of
from hasten.doctor.profiling.repeated_batches import KEPT, kept_windows
from hasten.doctor.profiling.timed_steps import PartsClock, TimedSteps, growth, retained_memory, seconds_of
from hasten.doctor.profiling.user_lines import Place, place_of, reason_of, where
from hasten.doctor.run_rules.step_costs import MUCH
from hasten.facts.job import Job
from hasten.facts.machine import free_memory
from hasten.facts.plan import Plan
from hasten.facts.profiles import CheckpointCost, DeviceUse, Line, NotMeasured, RetainedMemory, RunProfile
from hasten.measure.process_memory import Fault, fault_cost, held_bytes, resident_bytes
from hasten.measure.processor_load import LoadClock
from hasten.measure.stack_sampling import Stacks
from hasten.training.evaluate import Part
from hasten.training.probes.brief_run import brief_run, observing
from hasten.training.probes.peak_memory import peak_memory
from hasten.training.run import Run

Watch = Callable[[int, int, str], object]
"""(done, whole, what is done next)"""
ROUNDS = 6
OTHER_PHASES = 5  # the first steps, the parts of a step, an evaluation, a checkpoint, memory
WINDOW_SECONDS = 0.4  # of a window, where steps are short enough
MOST_SECONDS = 60.0  # of all rounds, where steps are long: there are fewer then
FEWEST_ROUNDS = 3
_WARM_UP = 3  # steps
_TRACED_STEPS = 3  # operation by operation, and line by line
_MOST_STEPS = 200  # of a window
_EVALUATION_SECONDS = 0.5
_ENDLESS = 1_000_000_000  # steps


@dataclass(slots=True)
class _Windows:
    """Seconds of a step, window by window; waited: of these (plain), for data; loading_cpu: processor seconds.
    new_pages: of memory, in a step; page_costs: of one. memory: bytes held, after each round."""

    plain: list[float] = field(default_factory=list)
    waited: list[float] = field(default_factory=list)
    loading: list[float] = field(default_factory=list)
    loading_cpu: list[float] = field(default_factory=list)
    computing: list[float] = field(default_factory=list)
    new_pages: list[float] = field(default_factory=list)
    page_costs: list[Fault] = field(default_factory=list)
    memory: list[tuple[int, int]] = field(default_factory=list)  # steps taken so far, bytes


def profile_run(
    job: Job, plan: Plan | None = None, *, name: str = "", watch: Watch = lambda done, whole, phase: None
) -> RunProfile:
    """Train the job for some steps by the plan, measured; its schedule and its length are ignored. watch: receives the
    phases that are done, all, and the name of the next. Raises what building or training the job raises."""
    with brief_run(job, plan, name=name, steps=_ENDLESS) as run:
        return _Profiler(run, job, watch).profile()


class _Profiler:
    def __init__(self, run: Run, job: Job, watch: Watch) -> None:
        self._run, self._job, self._watch = run, job, watch
        self._done, self._phases = 0, ROUNDS + OTHER_PHASES
        self._stacks = Stacks(get_ident(), where)
        self._loading_stacks = Stacks(get_ident(), place_of)
        self._found, self._timed = _Windows(), TimedSteps(run)
        self._steps_per_epoch = run.loader.steps_per_epoch
        self._resident = resident_bytes()  # not the peak, which a profile of the model has raised

    def profile(self) -> RunProfile:
        with compiler_notes() as notes:
            clock = LoadClock(self._timed.cpu_seconds)
            steps, kept = self._rounds()
            load = clock.load()
        device = self._run.device
        free_bytes = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else free_memory()
        self._begin("the parts of a step")
        use = self._device_use(steps, kept)  # before a larger batch leaves its blocks with the allocator
        larger, no_larger = larger_batches(self._run, self._timed, kept, steps, self._step_bytes)
        parts = self._parts(steps)
        operations, timed, not_counted = self._inside()
        evaluation, checkpoint = self._evaluation(), self._checkpoint()
        run, found = self._run, self._found
        together, grown, page = seconds_of(found.plain), growth(found.memory), median_low(found.page_costs)
        return RunProfile(
            device=str(device),
            machine=run.setup.machine.summary,
            batch_size=run.built.batch_size,
            workers=run.setup.loader.workers,
            reading_cores=self._reading_cores(),
            steps_per_epoch=self._steps_per_epoch,
            planned_steps=self._job.max_steps,
            evaluations_per_epoch=self._evaluations_per_epoch(),
            steps=run.steps,
            together=together,
            waited=seconds_of(found.waited),
            computing=seconds_of(found.computing),
            loading=seconds_of(found.loading),
            loading_cpu=median(found.loading_cpu),
            larger=larger,
            no_larger=no_larger,
            parts=parts,
            evaluation_seconds=evaluation,
            checkpoint=checkpoint,
            operations=operations.total,
            lines=tuple(self._lines(together.value, operations, timed)),
            growth=grown,
            new_pages=median(found.new_pages),
            page_seconds=page.seconds,
            page_bytes=page.bytes,
            kept_memory=self._kept_memory(steps, together.value, grown or 0),
            free_bytes=free_bytes,
            others=load.others,
            graph_breaks=compiled(notes.breaks),
            recompiled=compiled(notes.again),
            device_use=use,
            not_counted=not_counted,
        )

    def _begin(self, phase: str) -> None:
        self._watch(self._done, self._phases, phase)
        self._done += 1

    def _rounds(self) -> tuple[int, list[Any]]:
        """All that is timed in turn. The steps of a window, and microbatches to repeat."""
        self._begin("the first steps")
        self._timed.take(_WARM_UP)
        steps, rounds = self._lengths()
        self._phases = rounds + OTHER_PHASES
        in_a_round = 2 * (steps + 1 + self._timed.ahead)  # of one epoch
        kept = kept_windows(self._run.loader, self._run.epoch, in_a_round, min(KEPT, steps))
        for number in range(rounds):
            self._begin(f"round {number + 1} of {rounds}")
            self._round(steps, kept)
        return steps, kept

    def _lengths(self) -> tuple[int, int]:
        """Steps of a window, and rounds."""
        second = self._timed.take(2).seconds
        steps = max(2, min(round(WINDOW_SECONDS / second), _MOST_STEPS))
        in_a_round = 4 * (steps + 1 + self._timed.ahead) * second
        return steps, max(FEWEST_ROUNDS, min(ROUNDS, int(MOST_SECONDS / in_a_round)))

    def _round(self, steps: int, kept: list[Any]) -> None:
        found = self._found
        with self._stacks.watching():
            self._timed.take(steps)
        taken = self._timed.take(steps)
        found.plain.append(taken.seconds)
        found.waited.append(taken.waited)
        found.new_pages.append(taken.new_pages)
        found.memory.append((self._run.steps, held_bytes(self._run.device)))
        found.page_costs.append(fault_cost())
        with self._loading_stacks.watching():
            seconds, cpu = self._timed.read(steps)
        found.loading.append(seconds)
        found.loading_cpu.append(cpu)
        windows = sum(each.last for each in kept)
        with self._timed.free(kept):
            taken = self._timed.take(steps // windows * windows)  # each as often as the others
            found.computing.append(taken.seconds)

    def _step_bytes(self) -> int:
        """Upper bound of the host's memory that steps have taken so far."""
        return peak_memory(torch.device("cpu"))() - self._resident

    def _parts(self, steps: int) -> dict[str, float]:
        """Seconds of a step, by the boundaries inside it."""
        clock = PartsClock(self._timed.settle)
        first = self._run.steps
        with observing(self._run, clock):
            taken = self._timed.take(steps)
        count = self._run.steps - first
        seconds = {name: value / count for name, value in clock.seconds.items()}
        seconds["data_wait"] = max(0.0, taken.waited - seconds["transfer"])
        return {**seconds, "python": max(0.0, taken.seconds - sum(seconds.values()))}

    def _inside(self) -> tuple[Operations, LineTimes, str]:
        """Operations and lines of a few steps; none of a compiled model, whose code no dispatch mode and no trace sees.
        And why they are not known: not all code runs under these."""
        autocast = self._run.setup.step.autocast is not None
        nothing = Operations(autocast=autocast), LineTimes()
        if self._run.compiling is not None:
            return *nothing, ""
        counted = [Operations(autocast=autocast, settle=self._timed.settle) for _ in range(_TRACED_STEPS)]
        timed = [LineTimes() for _ in range(_TRACED_STEPS)]
        try:
            for each in counted:
                self._step_in(each, each.next_batch)
            for each in timed:
                self._step_in(each)
        except Exception as error:
            return *nothing, reason_of(error)
        return least_of(counted), least_times(timed), ""

    def _step_in(self, around: AbstractContextManager[Any], next_batch: Callable[[], None] = lambda: None) -> None:
        """One step."""
        with closing(self._run.batches()) as batches, around:
            for batch in batches:
                next_batch()
                self._run.step(batch)
                if self._run.window_closed:
                    break

    def _device_use(self, steps: int, kept: list[Any]) -> DeviceUse | None:
        """None on a CPU, which is never idle while Python runs."""
        if self._run.device.type != "cuda":
            return None

        def take() -> int:
            first = self._run.steps
            self._timed.take(steps)
            return self._run.steps - first

        with self._timed.free(kept):
            return cuda_use(self._run.device, take)

    def _evaluation(self) -> float | NotMeasured:
        run, evaluator = self._run, self._run.evaluator
        valid = run.built.valid
        if evaluator is None or valid is None:
            return 0.0
        self._begin("an evaluation")
        part = Part(seconds=_EVALUATION_SECONDS, samples=valid.count, ahead=self._timed.ahead)
        try:
            with run.built.result.in_model(), run.built.declared.preserved():
                timed = evaluator.timed(part, time.perf_counter, self._timed.settle)
        except Exception as error:  # of the job's own code, or of memory that is short
            return NotMeasured(why=reason_of(error))
        return NotMeasured(why="its data does not say how long it is") if timed is None else timed

    def _checkpoint(self) -> CheckpointCost | NotMeasured:
        self._begin("a checkpoint")
        try:
            return checkpoint_cost(self._run, keeps_best=self._job.keeps is not None)
        except Exception as error:  # of an optimizer of the job's own, or of memory that is short
            return NotMeasured(why=reason_of(error))

    def _kept_memory(self, steps: int, together: float, grown: int) -> RetainedMemory | None:
        """None where too little memory is new in a step to matter, or where the plan keeps freed memory."""
        page = median_low(self._found.page_costs)
        pages = max(0.0, median(self._found.new_pages) - grown / page.bytes)
        little = pages * page.seconds < MUCH * together
        if little or self._run.setup.process.keep_freed_memory:
            return None
        self._begin("memory that is released")
        return retained_memory(self._run, self._timed, steps, len(self._found.plain))

    def _evaluations_per_epoch(self) -> float:
        if self._job.valid is None:
            return 0.0
        steps = self._steps_per_epoch or self._job.max_steps
        return steps / self._job.evaluate_every if steps and self._job.evaluate_every else 1.0

    def _reading_cores(self) -> int:
        options, cores = self._run.setup.loader, self._run.setup.machine.cores
        return 1 if options.worker_kind == "threads" else max(1, min(options.workers, cores))

    def _lines(self, step: float, operations: Operations, timed: LineTimes) -> list[Line]:
        """Of steps, and of reading, whose seconds are a share of reading alone."""
        lines = lines_of_steps(self._stacks.counts, step, operations, timed)
        stacks, loading = self._loading_stacks, median(self._found.loading)
        lines += [
            line_of(place, found, stacks.samples, loading)
            for place, found in stacks.counts.items()
            if isinstance(place, Place)
        ]
        return sorted(lines, key=lambda each: (-each.high, each.path, each.line, each.function))
