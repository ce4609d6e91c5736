"""What a trial of an unmodified script costs a step, where its plan is empty.

    python -m bench.empty_plan            # about four minutes; nothing else may run meanwhile; writes a record
    python -m bench.empty_plan --quick    # shows that it works, and judges nothing

A script runs unmodified in one process, and as a trial under an empty plan in another one, with all that hasten watches
in a trial. Both are forked from the same process, take turns in windows of steps, and are timed from outside. Both are
started twelve times, because the memory layout of a process shows in such short steps. Page faults of both are counted
too, which needs Linux: what a trial keeps alive can change how often freed memory is returned and faulted in again.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, chdir, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median

from bench.judging import middle_seconds
from bench.options import parser_of
from bench.page_faults import page_faults_of_children
from bench.record import PACKAGES, ROOT, Target, environment, head, target_table, write_folder

from hasten.facts.machine import read_machine
from hasten.facts.plan import Plan
from hasten.measure.paired_timing import LEAST_PAIRS, Comparison, Window, compare, interleaved
from hasten.scripts.running.program import Program
from hasten.scripts.trials.script_arms import observe, script_arms
from hasten.tuning.trials.arms import Arm, Arms
from hasten.tuning.trials.other_programs import OtherPrograms
from hasten.tuning.trials.trial_process import TrialProcess, start_fork_server

LOOP, LOADER = "empty_plan_loop.py", "empty_plan_loader.py"
PLAIN, AGAIN, TRIAL = "plain", "plain again", "trial"

# Fixed before the first run: at most so much of a step, or so many microseconds, whichever is more.
MOST_SHARE, MOST_MICROSECONDS = 0.01, 50.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Work:
    """A script. steps: of a window; rounds: of windows in each start."""

    name: str
    script: str
    options: tuple[str, ...]
    warmup_steps: int
    steps: int
    rounds: int
    arms: tuple[str, ...] = (PLAIN, TRIAL)


WORKS = (
    Work(
        name="plain loop, short steps",
        script=LOOP,
        options=("--width", "64", "--batch", "32"),
        warmup_steps=300,
        steps=500,
        rounds=3,
        arms=(PLAIN, AGAIN, TRIAL),
    ),
    Work(
        name="loader, short steps",
        script=LOADER,
        options=("--width", "32", "--batch", "16"),
        warmup_steps=300,
        steps=500,
        rounds=3,
    ),
    Work(
        name="plain loop, medium steps",
        script=LOOP,
        options=("--width", "512", "--batch", "64"),
        warmup_steps=20,
        steps=50,
        rounds=3,
    ),
    Work(
        name="loader, medium steps",
        script=LOADER,
        options=("--width", "512", "--batch", "48"),
        warmup_steps=20,
        steps=50,
        rounds=3,
    ),
    Work(
        name="loader, long steps",
        script=LOADER,
        options=("--width", "1024", "--batch", "256"),
        warmup_steps=3,
        steps=50,
        rounds=1,
    ),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """faults: per step, one number for each start, by arm."""

    work: Work
    comparison: Comparison
    control: Comparison | None  # the plain script against itself
    faults: dict[str, list[float]]

    @property
    def step_seconds(self) -> float:
        return middle_seconds(self.comparison.windows, PLAIN)

    @property
    def target(self) -> Target:
        extra = self.comparison.extra
        return Target(
            name=f"{self.work.name} ({self.step_seconds * 1e3:.2g} ms): µs a step in a trial with an empty plan",
            bound=max(MOST_MICROSECONDS, MOST_SHARE * self.step_seconds * 1e6),
            at_most=True,
            low=extra.low * 1e6,
            value=extra.seconds * 1e6,
            high=extra.high * 1e6,
        )


def main() -> None:
    options = parser_of("empty_plan", __doc__).parse_args()
    began = time.perf_counter()
    os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory() as folder, chdir(folder):
        for script in (LOOP, LOADER):
            shutil.copy(ROOT / "bench" / script, folder)
        start_on_one_core()
        works = [replace(WORKS[0], steps=60, warmup_steps=10, rounds=1)] if options.quick else WORKS
        found = [measured(work) for work in works]
    print(f"{time.perf_counter() - began:.0f} s in all")
    if options.quick:
        print("--quick judges nothing: no record was written")
        return
    print(f"written: {written(found, options.records)}")


def start_on_one_core() -> None:
    """The server that all processes are forked from: one that the kernel moves to another core finds no cache there."""
    libraries = ["bench.empty_plan_plain", "hasten.scripts.trials.script_process"]
    if not hasattr(os, "sched_setaffinity"):
        start_fork_server(libraries)
        return
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(cores)})
    start_fork_server(libraries)
    os.sched_setaffinity(0, cores)


def measured(work: Work) -> Found:
    program = Program(name=work.script, options=work.options)
    trials = script_arms(program, observe(program), None, OtherPrograms(None))
    plain = Arms(
        f"{program.path}:", launch=lambda plan: TrialProcess("bench.empty_plan_plain:serve_plain", [], program)
    )
    started = {PLAIN: plain, AGAIN: plain, TRIAL: trials}
    windows, faults = list[Window](), {name: list[float]() for name in work.arms}
    for start in range(LEAST_PAIRS):
        order = work.arms if start % 2 == 0 else work.arms[::-1]
        with running({name: started[name] for name in order}) as arms:
            for arm in arms.values():
                arm.window(work.warmup_steps)
            counted = {name: list[float]() for name in order}
            for name in interleaved(order, work.rounds):
                before = page_faults_of_children()
                windows.append(timed(arms[name], work.steps, name, start))
                counted[name].append((page_faults_of_children() - before) / work.steps)
        for name, each in counted.items():
            faults[name].append(median(each))
    control = compare(windows, baseline=PLAIN, challenger=AGAIN) if AGAIN in work.arms else None
    comparison = compare(windows, baseline=PLAIN, challenger=TRIAL)
    found = Found(work=work, comparison=comparison, control=control, faults=faults)
    target = found.target
    print(f"{target.name}: {target.value:.1f} ({target.low:.1f} to {target.high:.1f}), {target.outcome}")
    print(f"  page faults a step: {faults_of(found, PLAIN)} plain, {faults_of(found, TRIAL)} in a trial", flush=True)
    return found


@contextmanager
def running(started: dict[str, Arms]) -> Iterator[dict[str, Arm]]:
    with ExitStack() as resources:
        yield {name: resources.enter_context(arms.start(name, Plan())) for name, arms in started.items()}


def timed(arm: Arm, steps: int, name: str, start: int) -> Window:
    begin = time.perf_counter()
    arm.window(steps)
    return Window(arm=name, steps=steps, seconds=time.perf_counter() - begin, start=start)


def written(found: Sequence[Found], records: Path) -> Path:
    machine = read_machine()
    surroundings = environment(machine, PACKAGES)
    targets = [each.target for each in found]
    control = next(each.control for each in found if each.control is not None)
    extra = control.extra
    spread = f"{extra.seconds * 1e6:+.1f} ({extra.low * 1e6:+.1f} to {extra.high * 1e6:+.1f})"
    facts = [
        f"{LEAST_PAIRS} starts of each script, unmodified and as a trial, one compute thread, in turns; of each start "
        "the middle window counts",
        f"Target: at most {MOST_SHARE:.0%} of a step or {MOST_MICROSECONDS:g} µs, whichever is more",
        f"Control, the plain loop with short steps against itself: {spread} µs a step",
    ]
    claim = "What a trial costs a step of an unmodified script, where its plan is empty"
    rows = [
        f"| {each.work.name} | {each.step_seconds * 1e3:.3g} | {each.target.value:+.1f} "
        f"({each.target.low:+.1f} to {each.target.high:+.1f}) | {share(each)} | "
        f"{faults_of(each, PLAIN)} | {faults_of(each, TRIAL)} |"
        for each in found
    ]
    page = [
        *head(claim, machine, surroundings, facts, "python -m bench.empty_plan"),
        *target_table(targets),
        "",
        "| script | its step, ms | cost, µs a step | cost, % of a step | page faults a step, plain | in a trial |",
        "|---|---|---|---|---|---|",
        *rows,
        "",
        "Ranges are 95 % intervals over pairs of processes; of page faults, the median, least and most of the starts.",
    ]
    result = {
        "claim": claim,
        "control": {"speedup": asdict(control.speedup), "extra_seconds_per_step": asdict(extra)},
        "costs": [
            {"script": each.work.name, "step_seconds": each.step_seconds}
            | {"extra_seconds_per_step": asdict(each.comparison.extra), "page_faults_per_step": each.faults}
            for each in found
        ],
        "targets": [asdict(target) | {"outcome": target.outcome} for target in targets],
    }
    lines = [
        {"script": each.work.name, **asdict(window)}
        for each in found
        for window in (*each.comparison.windows, *(control_windows(each)))
    ]
    return write_folder("empty-plan", records, machine, surroundings, result, lines, "\n".join(page) + "\n")


def share(found: Found) -> str:
    """The slowdown as a percentage, with its interval."""
    ratio = found.comparison.speedup
    value, low, high = ((1 / each - 1) * 100 for each in (ratio.ratio, ratio.high, ratio.low))
    return f"{value:+.2f} ({low:+.2f} to {high:+.2f})"


def faults_of(found: Found, arm: str) -> str:
    counts = found.faults[arm]
    return f"{median(counts):,.0f} ({min(counts):,.0f} to {max(counts):,.0f})"


def control_windows(found: Found) -> list[Window]:
    return [] if found.control is None else [each for each in found.control.windows if each.arm == AGAIN]


if __name__ == "__main__":
    main()
