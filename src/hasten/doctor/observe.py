"""A look at a running job: some of its real steps are taken, measured and thrown away.

Three things are timed in turn, round by round, so that what else the machine does falls on all of them alike: the steps
as they are, reading alone, and steps whose batches are there already. The first against the last is what free loading
would gain. Beside the steps, half of the windows have their stack looked at many times a second; the windows without
tell what that look costs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise
from statistics import median
from threading import get_ident
from typing import Any

import psutil
import torch

from hasten.doctor.checkpoint_cost import checkpoint_cost
from hasten.doctor.device_use import cuda_use
from hasten.doctor.free_loading import FreeLoading, enlarged, first_windows
from hasten.doctor.line_times import LineTimes
from hasten.doctor.operations import Operations, Tally, least_of
from hasten.doctor.parts import PartsClock
from hasten.doctor.places import Place, place_of
from hasten.doctor.run_rules import ALL
from hasten.doctor.run_rules.contract import FoundInRun, RunRule, price_of
from hasten.doctor.timings import compiled, growth, line_of, ratio_of, seconds_of, with_fastest
from hasten.errors import HastenError
from hasten.facts.finding import Finding
from hasten.facts.job import Job
from hasten.facts.machine import free_memory
from hasten.facts.plan import Plan
from hasten.facts.run_look import LARGER, LITTLE, CheckpointCost, DeviceUse, Larger, Line, RunLook
from hasten.measure.held import held_bytes
from hasten.measure.page_faults import fault_seconds, page_faults
from hasten.measure.stacks import Stacks
from hasten.training.brief_run import brief_run
from hasten.training.evaluate import Part
from hasten.training.phases import phases_told
from hasten.training.run import Run

ROUNDS = 6
WINDOW_SECONDS = 0.4  # of a window, where steps are short enough
MOST_SECONDS = 60.0  # of all rounds, where steps are long: there are fewer then
FEWEST_ROUNDS = 3
_WARM_UP = 3  # steps
_WATCHED_STEPS = 3  # operation by operation
_MOST_STEPS = 200  # of a window
_EVALUATION_SECONDS = 0.5
_ENDLESS = 1_000_000_000  # steps
_MOST_LINES = 50  # of the user's, that a look tells of


@dataclass(slots=True)
class _Windows:
    """Seconds of a step, window by window: quiet and watched ones, what the quiet ones waited for data, and so on;
    loading_cpu of processor time; computing_steps of single steps. new_pages: of memory, in a step. memory: bytes held,
    after each round."""

    quiet: list[float] = field(default_factory=list)
    waited: list[float] = field(default_factory=list)
    watched: list[float] = field(default_factory=list)
    loading: list[float] = field(default_factory=list)
    loading_cpu: list[float] = field(default_factory=list)
    computing: list[float] = field(default_factory=list)
    computing_steps: list[float] = field(default_factory=list)
    new_pages: list[float] = field(default_factory=list)
    memory: list[tuple[int, int]] = field(default_factory=list)  # steps taken so far, bytes


def observe_job(job: Job, plan: Plan | None = None, *, name: str = "", tell: Callable[[str], None] = print) -> RunLook:
    """Train the job for some steps by the plan, measured. tell: is given a few words about what is under way.

    Its schedule and its length play no part. Raises what building or training the job raises.
    """
    with brief_run(job, plan, name=name, steps=_ENDLESS) as run:
        return _Observer(run, job, tell).look()


def found_in(look: RunLook, rules: Collection[RunRule] = ALL) -> list[Finding]:
    """What these rules find in it."""
    return [_finding(rule, each, look) for rule in rules for each in rule.check(look)]


def _finding(rule: RunRule, found: FoundInRun, look: RunLook) -> Finding:
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


class _Observer:
    def __init__(self, run: Run, job: Job, tell: Callable[[str], None]) -> None:
        self._run, self._job, self._tell = run, job, tell
        self._stacks = Stacks(get_ident(), place_of)
        self._loading_stacks = Stacks(get_ident(), place_of)
        self._found = _Windows()
        self._loader = run.loader
        self._process = psutil.Process()
        self._larger_refused = self._checkpoint_refused = ""

    def look(self) -> RunLook:
        if self._run.compiling is None:
            return self._look()
        from hasten.doctor.compiler_notes import compiler_notes  # loads torch's compiler, which takes a second

        with compiler_notes() as notes:
            look = self._look()
        return replace(look, graph_breaks=compiled(notes.breaks), recompiled=compiled(notes.again))

    def _look(self) -> RunLook:
        run = self._run
        self._tell("the first steps")
        kept = first_windows(run.loader, run.epoch)
        self._steps(_WARM_UP)
        steps, rounds = self._lengths()
        for number in range(rounds):
            self._tell(f"round {number + 1} of {rounds}")
            self._round(steps, kept)
        self._tell("what is inside a step")
        use = self._device_use(steps, kept)  # before a larger batch leaves its blocks with the allocator
        larger = self._larger(steps, kept)
        parts = self._parts(steps)
        operations, self._timed = self._operations(), self._line_times()
        told = self._told(larger, parts, operations, self._evaluation(), self._checkpoint())
        return replace(told, device_use=use)

    # ── measuring ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _lengths(self) -> tuple[int, int]:
        """Steps of a window, and rounds."""
        second = self._steps(2)
        steps = max(2, min(round(WINDOW_SECONDS / second), _MOST_STEPS))
        in_a_round = 4 * (steps + 1 + self._ahead) * second
        return steps, max(FEWEST_ROUNDS, min(ROUNDS, int(MOST_SECONDS / in_a_round)))

    def _round(self, steps: int, kept: list[Any]) -> None:
        found = self._found
        for watched in ((False, True), (True, False))[len(found.quiet) % 2]:
            if watched:
                with self._stacks.watching():
                    found.watched.append(self._steps(steps))
            else:
                waited, faults = self._run.wait_seconds, page_faults()
                found.quiet.append(self._steps(steps))
                found.waited.append((self._run.wait_seconds - waited) / (steps + 1 + self._ahead))
                found.new_pages.append((page_faults() - faults) / (steps + 1 + self._ahead))
        found.memory.append((self._run.steps, held_bytes(self._run.device)))
        seconds, cpu = self._read(steps)
        found.loading.append(seconds)
        found.loading_cpu.append(cpu)
        with self._free(kept):
            found.computing.append(self._steps(steps))
            if self._run.device.type == "cpu":  # elsewhere Python only asks for a step, and the device takes it later
                found.computing_steps += [b - a for a, b in pairwise(self._clock)]

    def _steps(self, steps: int) -> float:
        """Seconds of one of so many steps. One more is taken before, and as many as workers have batches ready."""
        run, ahead = self._run, 1 + self._ahead
        begin, first = 0.0, run.steps
        self._clock = list[float]()
        with closing(run.batches()) as batches:
            for batch in batches:
                run.step(batch)
                taken = run.steps - first
                if taken == ahead and run.window_closed:
                    self._settle()
                    begin = time.perf_counter()
                if taken >= ahead and run.window_closed:
                    self._clock.append(time.perf_counter())
                if taken == ahead + steps and run.window_closed:
                    break
        self._settle()
        return (time.perf_counter() - begin) / steps

    def _read(self, steps: int) -> tuple[float, float]:
        """Seconds, and those of the processor, of reading one step's batches and doing nothing with them."""
        taken, begin, cpu = 0, 0.0, 0.0
        with self._loading_stacks.watching():
            while taken < self._ahead + 1 + steps:
                for each in self._loader.epoch(self._run.epoch):
                    taken += each.last
                    if taken == self._ahead + 1 and each.last:
                        begin, cpu = time.perf_counter(), self._cpu_seconds()
                    if taken == self._ahead + 1 + steps:
                        break
        return (time.perf_counter() - begin) / steps, (self._cpu_seconds() - cpu) / steps

    @contextmanager
    def _free(self, kept: list[Any]) -> Iterator[None]:
        """Loading costs nothing inside."""
        self._run.loader = FreeLoading(self._loader, kept)  # pyright: ignore[reportAttributeAccessIssue]
        try:
            yield
        finally:
            self._run.loader = self._loader
            self._run.skip_to_next_epoch()  # the present one has gone on behind its end

    def _larger(self, steps: int, kept: list[Any]) -> tuple[Larger, ...]:
        """Steps with larger and larger batches, as long as each takes little longer than the one before; none where
        that cannot be, for the reason that is kept."""
        found, before = list[Larger](), median(self._found.computing)
        samples = self._run.built.fingerprint.samples
        for times in LARGER:
            if samples is not None and samples < times * self._run.built.batch_size:
                self._larger_refused = f"the data has {samples:,} samples"
                break
            try:
                with self._free(enlarged(kept, times)):
                    taken = [self._steps(max(2, steps // times)) for _ in range(FEWEST_ROUNDS)]
            # Memory may be short, or a model written for one size of batch, and what it raises then is its own.
            except Exception as error:
                self._larger_refused = (str(error) or type(error).__name__).splitlines()[0]
                if self._run.device.type == "cuda":
                    torch.cuda.empty_cache()
                break
            found.append(Larger(times=times, step=seconds_of(taken)))
            if found[-1].step.value > LITTLE * before:
                break
            before = found[-1].step.value
        return tuple(found)

    def _parts(self, steps: int) -> dict[str, float]:
        """Of a step, by the boundaries inside it."""
        clock = PartsClock(self._settle)
        waited, first = self._run.wait_seconds, self._run.steps
        with phases_told(self._run, clock):
            begin = time.perf_counter()
            self._steps(steps)
            total = time.perf_counter() - begin
        taken = self._run.steps - first
        seconds = {name: value / taken for name, value in clock.seconds.items()}
        seconds["data_wait"] = max(0.0, (self._run.wait_seconds - waited) / taken - seconds["transfer"])
        return {**seconds, "python": max(0.0, total / taken - sum(seconds.values()))}

    def _operations(self) -> Operations | None:
        """Of one step; None of compiled ones, which no mode sees."""
        if self._run.compiling is not None:
            return None
        autocast = self._run.setup.step.autocast is not None
        found = [Operations(autocast=autocast) for _ in range(_WATCHED_STEPS)]
        for each in found:
            self._step_in(each)
        return least_of(found)

    def _line_times(self) -> dict[Place, float]:
        """Seconds of a step, the least of a few; none of a compiled one, which Python does not run line by line."""
        found = [LineTimes() for _ in range(_WATCHED_STEPS if self._run.compiling is None else 0)]
        for each in found:
            self._step_in(each)
        places = {place for each in found for place in each.seconds}
        return {place: min(each.seconds.get(place, 0.0) for each in found) for place in places}

    def _step_in(self, around: AbstractContextManager[Any]) -> None:
        """One of them."""
        with closing(self._run.batches()) as batches, around:
            for batch in batches:
                self._run.step(batch)
                if self._run.window_closed:
                    break

    def _device_use(self, steps: int, kept: list[Any]) -> DeviceUse | None:
        """None of a processor, which is never idle while Python runs."""
        if self._run.device.type != "cuda":
            return None

        def take() -> int:
            first = self._run.steps
            self._steps(steps)
            return self._run.steps - first

        with self._free(kept):
            return cuda_use(self._run.device, take)

    def _evaluation(self) -> float:
        run, evaluator = self._run, self._run.evaluator
        valid = run.built.valid
        if evaluator is None or valid is None:
            return 0.0
        self._tell("an evaluation")
        part = Part(seconds=_EVALUATION_SECONDS, samples=valid.count or 0, ahead=self._ahead)
        with run.averaged(), run.unmoved_loss():
            return evaluator.timed(part, time.perf_counter, self._settle)

    def _checkpoint(self) -> CheckpointCost | None:
        self._tell("a checkpoint")
        try:
            return checkpoint_cost(self._run)
        except HastenError as error:
            self._checkpoint_refused = ": ".join(filter(None, (error.where, error.what)))
            return None

    @property
    def _ahead(self) -> int:
        """Batches that workers have ready before they are asked for."""
        options = self._run.setup.loader
        return options.workers * (options.prefetch_factor or 2)

    def _settle(self) -> None:
        if self._run.device.type == "cuda":
            torch.cuda.synchronize(self._run.device)

    def _cpu_seconds(self) -> float:
        """Of this process and of those that read for it."""
        times = [time.process_time()]
        for child in self._process.children(recursive=True):
            try:
                times.append(sum(child.cpu_times()[:2]))
            except psutil.Error:  # it has ended
                continue
        return sum(times)

    # ── telling ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _told(
        self,
        larger: tuple[Larger, ...],
        parts: dict[str, float],
        operations: Operations | None,
        evaluation: float,
        checkpoint: CheckpointCost | None,
    ) -> RunLook:
        run, found, machine = self._run, self._found, self._run.setup.machine
        together = seconds_of(found.quiet)
        return RunLook(
            device=str(run.device),
            machine=machine.summary,
            batch_size=run.built.batch_size,
            samples=run.built.fingerprint.samples,
            workers=run.setup.loader.workers,
            steps_per_epoch=self._loader.steps_per_epoch,
            planned_steps=self._job.max_steps,
            evaluations_per_epoch=self._evaluations_per_epoch(),
            steps=run.steps,
            together=together,
            waited=seconds_of(found.waited),
            computing=with_fastest(seconds_of(found.computing), found.computing_steps),
            loading=seconds_of(found.loading),
            loading_cpu=median(found.loading_cpu),
            larger=larger,
            larger_refused="" if larger else self._larger_refused,
            parts=parts,
            evaluation_seconds=evaluation,
            checkpoint=checkpoint,
            checkpoint_refused=self._checkpoint_refused,
            operations=operations.total if operations is not None else 0,
            backward_copying=operations.backward.copying_seconds if operations is not None else 0.0,
            lines=tuple(self._lines(together.value, operations.lines if operations is not None else {})),
            growth=growth(found.memory),
            new_pages=median(found.new_pages),
            page_seconds=fault_seconds(),
            memory_bytes=machine.accelerator_memory_bytes if run.device.type == "cuda" else machine.memory_bytes,
            free_bytes=torch.cuda.mem_get_info(run.device)[0] if run.device.type == "cuda" else free_memory(),
            overhead=ratio_of(found.watched, found.quiet),
        )

    def _evaluations_per_epoch(self) -> float:
        if self._job.valid is None:
            return 0.0
        steps = self._loader.steps_per_epoch or self._job.max_steps
        return steps / self._job.evaluate_every if steps and self._job.evaluate_every else 1.0

    def _lines(self, step: float, tallies: dict[Place, Tally]) -> list[Line]:
        """Those of steps, and those of reading, whose seconds are a share of reading alone."""
        loading = median(self._found.loading)
        lines = list[Line]()
        seen = {place for place in self._stacks.counts if isinstance(place, Place) and not place.in_loading}
        for place in seen | {each for each in tallies if not each.in_loading}:
            line = line_of(place, self._stacks, step, tallies.get(place, Tally()))
            lines.append(replace(line, high=max(line.high, self._timed.get(place, 0.0))))
        for place in self._loading_stacks.counts:
            if isinstance(place, Place):
                lines.append(line_of(place, self._loading_stacks, loading, Tally()))
        return sorted(lines, key=lambda each: -each.high)[:_MOST_LINES]
