"""A look at a running job: some of its real steps are taken, measured and thrown away.

Three things are timed in turn, round by round, so that what else the machine does falls on all of them alike: the steps
as they are, reading alone, and steps whose batches are there already. The first against the last is what free loading
would gain. Beside the steps, half of the windows have their stack looked at many times a second; the windows without
tell what that look costs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass, field
from operator import sub
from statistics import median, median_low
from threading import get_ident
from typing import TYPE_CHECKING, Any

import torch

from hasten.doctor.profiling.checkpoint_cost import checkpoint_cost
from hasten.doctor.profiling.device_use import cuda_use
from hasten.doctor.profiling.kept_memory import kept_memory
from hasten.doctor.profiling.larger_batches import LargerBatches, larger_batches
from hasten.doctor.profiling.line_costs import compiled, growth, line_of, lines_of_steps, ratio_of, seconds_of
from hasten.doctor.profiling.line_times import LineTimes, least_times
from hasten.doctor.profiling.operation_counts import Operations, least_of
from hasten.doctor.profiling.parts import PartsClock
from hasten.doctor.profiling.reasons import reason_of
from hasten.doctor.profiling.repeated_batches import KEPT, kept_windows, why_not_copied
from hasten.doctor.profiling.timed_steps import Stretches, sampling_error, with_fastest
from hasten.doctor.profiling.user_lines import Place, place_of, where
from hasten.doctor.rule import FoundInRun, RunRule
from hasten.doctor.run_rules import ALL
from hasten.doctor.run_rules.step_costs import MUCH, price_of
from hasten.errors import DataFailed, HastenError
from hasten.facts.finding import Finding
from hasten.facts.job import Job
from hasten.facts.machine import free_memory
from hasten.facts.plan import Plan
from hasten.facts.profiles import CheckpointCost, DeviceUse, Line, NotMeasured, RetainedMemory, RunProfile
from hasten.measure.process_memory import Fault, fault_cost, held_bytes, peak_resident_bytes, resident_bytes
from hasten.measure.processor_load import LoadClock
from hasten.measure.stack_sampling import Stacks
from hasten.training.evaluate import Part
from hasten.training.probes.brief_run import brief_run
from hasten.training.probes.observed_run import observing
from hasten.training.run import Run

if TYPE_CHECKING:
    from hasten.doctor.profiling.compiler_log import CompilerNotes

ROUNDS = 6
WINDOW_SECONDS = 0.4  # of a window, where steps are short enough
MOST_SECONDS = 60.0  # of all rounds, where steps are long: there are fewer then
FEWEST_ROUNDS = 3
_WARM_UP = 3  # steps
_WATCHED_STEPS = 3  # operation by operation
_MOST_STEPS = 200  # of a window
_EVALUATION_SECONDS = 0.5
_WHOLE_EVALUATION_SECONDS = 5.0  # of one whose length nobody knows: no part of it tells of the rest
_ENDLESS = 1_000_000_000  # steps


@dataclass(slots=True)
class _Windows:
    """Seconds of a step, window by window: quiet and watched ones, what the quiet ones waited for data, and so on;
    loading_cpu of processor time; computing_steps of single steps. new_pages: of memory, in a step; page_costs: of one.
    memory: bytes held, after each round."""

    quiet: list[float] = field(default_factory=list)
    waited: list[float] = field(default_factory=list)
    watched: list[float] = field(default_factory=list)
    loading: list[float] = field(default_factory=list)
    loading_cpu: list[float] = field(default_factory=list)
    computing: list[float] = field(default_factory=list)
    computing_steps: list[float] = field(default_factory=list)
    new_pages: list[float] = field(default_factory=list)
    page_costs: list[Fault] = field(default_factory=list)
    memory: list[tuple[int, int]] = field(default_factory=list)  # steps taken so far, bytes


def observe_job(
    job: Job, plan: Plan | None = None, *, name: str = "", tell: Callable[[str], None] = print
) -> RunProfile:
    """Train the job for some steps by the plan, measured. tell: is given a few words about what is under way.

    Its schedule and its length play no part. Raises what building or training the job raises.
    """
    with brief_run(job, plan, name=name, steps=_ENDLESS) as run:
        try:
            return _Observer(run, job, tell).look()
        except DataFailed as error:
            if not run.built.train.iterable:
                raise
            again = "a look goes through a stream several times, so let each pass begin anew"
            raise DataFailed(error.what, where=error.where, fix=f"{error.fix}; {again}") from error


def found_in(look: RunProfile, rules: Collection[RunRule] = ALL) -> list[Finding]:
    """What these rules find in it."""
    return [_finding(rule, each, look) for rule in rules for each in rule.check(look)]


def _finding(rule: RunRule, found: FoundInRun, look: RunProfile) -> Finding:
    return Finding(
        code=rule.code,
        rule=rule.name,
        severity=rule.severity,
        message=found.message,
        fix=found.fix or rule.fix,
        path=found.line.path if found.line is not None else "",
        line=found.line.line if found.line is not None else 0,
        part="" if found.line is not None else "run",
        price=price_of(look, found),
        technique=rule.technique,
    )


def _refused(error: Exception) -> NotMeasured:
    if not isinstance(error, HastenError):
        return NotMeasured(why=reason_of(error))
    said = "; ".join(filter(None, (error.what, error.fix)))
    return NotMeasured(why=": ".join(filter(None, (error.where, said))))


class _Observer:
    def __init__(self, run: Run, job: Job, tell: Callable[[str], None]) -> None:
        self._run, self._job, self._tell = run, job, tell
        self._stacks = Stacks(get_ident(), where)
        self._loading_stacks = Stacks(get_ident(), place_of)
        self._found, self._stretches = _Windows(), Stretches(run)
        self._steps_per_epoch, self._not_free = run.loader.steps_per_epoch, ""
        self._resident = resident_bytes()  # not the peak, which a look at the model has raised

    def look(self) -> RunProfile:
        with self._listening() as notes:
            clock = LoadClock(self._stretches.cpu_seconds)
            steps, kept = self._rounds()
            load = clock.load()
        free_bytes = self._free_bytes()
        self._tell("what is inside a step")
        use = self._device_use(steps, kept)  # before a larger batch leaves its blocks with the allocator
        larger = LargerBatches(refused=self._not_free)
        if kept:
            larger = larger_batches(self._run, self._stretches, kept, steps, self._step_bytes)
        parts = self._parts(steps)
        operations, timed, not_counted = self._inside()
        evaluation, checkpoint = self._evaluation(), self._checkpoint()
        run, found, machine = self._run, self._found, self._run.setup.machine
        together, grown, page = seconds_of(found.quiet), growth(found.memory), median_low(found.page_costs)
        windows = max(1, sum(each.last for each in kept))
        return RunProfile(
            device=str(run.device),
            machine=machine.summary,
            batch_size=run.built.batch_size,
            samples=run.built.fingerprint.samples,
            workers=run.setup.loader.workers,
            reading_cores=self._reading_cores(),
            steps_per_epoch=self._steps_per_epoch,
            planned_steps=self._job.max_steps,
            evaluations_per_epoch=self._evaluations_per_epoch(),
            steps=run.steps,
            together=together,
            waited=seconds_of(found.waited),
            unwaited=seconds_of(list(map(sub, found.quiet, found.waited))),
            computing=with_fastest(seconds_of(found.computing), found.computing_steps, windows),
            computing_error=sampling_error(found.computing_steps, windows),
            not_free=self._not_free,
            loading=seconds_of(found.loading),
            loading_cpu=median(found.loading_cpu),
            larger=larger.found,
            no_larger=larger.refused,
            larger_failed=larger.failed,
            parts=parts,
            evaluation_seconds=evaluation,
            checkpoint=checkpoint,
            operations=operations.total if operations is not None else 0,
            backward_copying=operations.backward.copying_seconds if operations is not None else 0.0,
            lines=tuple(self._lines(together.value, operations, timed)),
            growth=grown,
            new_pages=median(found.new_pages),
            page_seconds=page.seconds,
            page_bytes=page.bytes,
            kept_memory=self._kept_memory(steps, together.value, grown or 0),
            memory_bytes=machine.accelerator_memory_bytes if run.device.type == "cuda" else machine.memory_bytes,
            free_bytes=free_bytes,
            overhead=ratio_of(found.watched, found.quiet),
            others=load.others,
            graph_breaks=compiled(notes.breaks) if notes is not None else (),
            recompiled=compiled(notes.again) if notes is not None else (),
            device_use=use,
            not_counted=not_counted,
        )

    # ── measuring ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _listening(self) -> AbstractContextManager[CompilerNotes | None]:
        """To the compiler, where it has work."""
        if self._run.compiling is None:
            return nullcontext()
        from hasten.doctor.profiling.compiler_log import compiler_notes  # loads torch's compiler, which takes a second

        return compiler_notes()

    def _rounds(self) -> tuple[int, list[Any]]:
        """All that is timed in turn. The steps of a stretch, and some microbatches; none where they are not free."""
        self._tell("the first steps")
        self._stretches.take(_WARM_UP)
        steps, rounds = self._lengths()
        in_a_round = 2 * (steps + 1 + self._stretches.ahead)  # of one epoch
        kept = kept_windows(self._run.loader, self._run.epoch, in_a_round, min(KEPT, steps))
        self._not_free = why_not_copied(kept) if self._run.device.type == "cpu" else ""
        if self._not_free:
            kept = []
        for number in range(rounds):
            self._tell(f"round {number + 1} of {rounds}")
            self._round(steps, kept)
        return steps, kept

    def _lengths(self) -> tuple[int, int]:
        """Steps of a stretch, and rounds."""
        second = self._stretches.take(2).seconds
        steps = max(2, min(round(WINDOW_SECONDS / second), _MOST_STEPS))
        in_a_round = 4 * (steps + 1 + self._stretches.ahead) * second
        return steps, max(FEWEST_ROUNDS, min(ROUNDS, int(MOST_SECONDS / in_a_round)))

    def _round(self, steps: int, kept: list[Any]) -> None:
        found = self._found
        for watched in ((False, True), (True, False))[len(found.quiet) % 2]:
            if watched:
                with self._stacks.watching():
                    found.watched.append(self._stretches.take(steps).seconds)
            else:
                taken = self._stretches.take(steps)
                found.quiet.append(taken.seconds)
                found.waited.append(taken.waited)
                found.new_pages.append(taken.new_pages)
        found.memory.append((self._run.steps, held_bytes(self._run.device)))
        found.page_costs.append(fault_cost())
        with self._loading_stacks.watching():
            seconds, cpu = self._stretches.read(steps)
        found.loading.append(seconds)
        found.loading_cpu.append(cpu)
        if not kept:
            found.computing.append(found.quiet[-1] - found.waited[-1])
            self._run.skip_to_next_epoch()
            return
        windows = sum(each.last for each in kept)
        with self._stretches.free(kept):
            taken = self._stretches.take(steps // windows * windows)  # each as often as the others
            found.computing.append(taken.seconds)
            if self._run.device.type == "cpu":  # elsewhere Python only asks for a step, and the device takes it later
                found.computing_steps += taken.single

    def _step_bytes(self) -> int:
        """Of the host's memory, that steps have taken so far, at most."""
        return peak_resident_bytes() - self._resident

    def _free_bytes(self) -> int:
        device = self._run.device
        return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else free_memory()

    def _parts(self, steps: int) -> dict[str, float]:
        """Of a step, by the boundaries inside it."""
        clock = PartsClock(self._stretches.settle)
        first = self._run.steps
        with observing(self._run, clock):
            taken = self._stretches.take(steps)
        count = self._run.steps - first
        seconds = {name: value / count for name, value in clock.seconds.items()}
        seconds["data_wait"] = max(0.0, taken.waited - seconds["transfer"])
        return {**seconds, "python": max(0.0, taken.seconds - sum(seconds.values()))}

    def _inside(self) -> tuple[Operations | None, LineTimes, str]:
        """And why something of it is not known: not every code runs under a mode, or is traced."""
        operations, timed, refused = None, LineTimes(), ""
        try:
            operations = self._operations()
            timed = self._line_times()
        except Exception as error:
            refused = reason_of(error)
        return operations, timed, refused

    def _operations(self) -> Operations | None:
        """Of one step; None of compiled ones, which no mode sees."""
        if self._run.compiling is not None:
            return None
        autocast = self._run.setup.step.autocast is not None
        found = [Operations(autocast=autocast, settle=self._stretches.settle) for _ in range(_WATCHED_STEPS)]
        for each in found:
            self._step_in(each, each.next_batch)
        return least_of(found)

    def _line_times(self) -> LineTimes:
        """Seconds of a step, the least of a few; none of a compiled one, which Python does not run line by line."""
        if self._run.compiling is not None:
            return LineTimes()
        found = [LineTimes() for _ in range(_WATCHED_STEPS)]
        for each in found:
            self._step_in(each)
        return least_times(found)

    def _step_in(self, around: AbstractContextManager[Any], next_batch: Callable[[], None] = lambda: None) -> None:
        """One of them."""
        with closing(self._run.batches()) as batches, around:
            for batch in batches:
                next_batch()
                self._run.step(batch)
                if self._run.window_closed:
                    break

    def _device_use(self, steps: int, kept: list[Any]) -> DeviceUse | None:
        """None of a processor, which is never idle while Python runs."""
        if self._run.device.type != "cuda":
            return None

        def take() -> int:
            first = self._run.steps
            self._stretches.take(steps)
            return self._run.steps - first

        with self._stretches.free(kept):
            return cuda_use(self._run.device, take)

    def _evaluation(self) -> float | NotMeasured:
        run, evaluator = self._run, self._run.evaluator
        valid = run.built.valid
        if evaluator is None or valid is None:
            return 0.0
        self._tell("an evaluation")
        seconds = _EVALUATION_SECONDS if valid.count is not None else _WHOLE_EVALUATION_SECONDS
        part = Part(seconds=seconds, samples=valid.count, ahead=self._stretches.ahead)
        try:
            with run.built.result.in_model(), run.built.declared.preserved():
                timed = evaluator.timed(part, time.perf_counter, self._stretches.settle)
        except Exception as error:  # of the job's own code, or of memory that is short
            return _refused(error)
        if timed is None:
            return NotMeasured(why=f"it was not over after {seconds:.3g} s, and its data does not say how long it is")
        return timed

    def _checkpoint(self) -> CheckpointCost | NotMeasured:
        self._tell("a checkpoint")
        try:
            return checkpoint_cost(self._run, keeps_best=self._job.stop is not None)
        except Exception as error:  # of an optimizer of the job's own, or of memory that is short
            return _refused(error)

    def _kept_memory(self, steps: int, together: float, grown: int) -> RetainedMemory | None:
        """None where too little memory is new in a step to be worth it, or the plan keeps what is freed."""
        page = median_low(self._found.page_costs)
        pages = max(0.0, median(self._found.new_pages) - grown / page.bytes)
        little = pages * page.seconds < MUCH * together
        if little or self._run.setup.process.keep_freed_memory:
            return None
        self._tell("memory that is given back")
        return kept_memory(self._run, self._stretches, steps, len(self._found.quiet))

    # ── telling ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _evaluations_per_epoch(self) -> float:
        if self._job.valid is None:
            return 0.0
        steps = self._steps_per_epoch or self._job.max_steps
        return steps / self._job.evaluate_every if steps and self._job.evaluate_every else 1.0

    def _reading_cores(self) -> int:
        options, cores = self._run.setup.loader, self._run.setup.machine.cores
        return 1 if options.worker_kind == "threads" else max(1, min(options.workers, cores))

    def _lines(self, step: float, operations: Operations | None, timed: LineTimes) -> list[Line]:
        """Those of steps, and those of reading, whose seconds are a share of reading alone."""
        lines = lines_of_steps(self._stacks.counts, step, operations, timed)
        stacks, loading = self._loading_stacks, median(self._found.loading)
        lines += [
            line_of(place, found, stacks.samples, loading)
            for place, found in stacks.counts.items()
            if isinstance(place, Place)
        ]
        return sorted(lines, key=lambda each: (-each.high, each.path, each.line, each.function))
