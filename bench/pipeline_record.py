"""What bench/pipeline.py has measured, as a record: two tables, a picture and the targets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from math import ceil, nan
from pathlib import Path
from statistics import mean, median

from bench.arms import Measured, Protocol
from bench.judging import mean_interval, mean_ratio, middle_seconds
from bench.record import Record, Target, write_record
from matplotlib.figure import Figure

from hasten.facts.plan import Plan
from hasten.measure.paired import Comparison, compare

NAIVE, PLAIN = "naive script", "job without a plan"
PLANNED, STOPPED = "plan", "plan and early stopping"

# Fixed before the first run. How many times faster whole runs are is asked of the script that the goal is about.
LEAST_TIMES, OF = {PLANNED: 5.0, STOPPED: 10.0}, "images"
MOST_APART = 0.10  # of what the search says and what whole runs take
MOST_LOST = {"accuracy": 0.01, "loss": 0.02}  # of the final result, in its own unit
REACHED = {"images": 0.95, "text": 2.6, "rows": 0.88}  # the fixed result that the time to is told of

DATA = {
    "images": "pictures: 2,400 crops of two photographs (examples/sample_photos.py) to learn from and 300 to be judged "
    "by, enlarged to 432 × 432 pixels with grain, about 98 KB each",
    "text": "text: the modules of the standard library, of which every tenth is held out",
    "rows": "rows: 200,000 of twenty random numbers, in four classes that a network drawn at random gives them, one in "
    "twenty of them drawn; 20,000 are held out",
}

FLOORS = (
    "What is claimed elsewhere of such pipelines, without a record: ten-fold as a whole, 1,200 → 5,800 images a "
    "second by loading, 2.76 times by mixed precision",
)


OF_WHOLE_RUNS = (
    "of whole runs, seconds are medians over the seeds, times faster geometric means of the ratios from the same seed "
    "with Student's 95 % interval, and results means between the least and the most"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Whole:
    """A run from its first step to its end. value: its final result. curve: seconds and result of each evaluation.
    peak_bytes: of memory of the process; None where nobody asked."""

    seconds: float
    value: float
    curve: Sequence[tuple[float, float]]
    peak_bytes: int | None = None

    @property
    def settled(self) -> float:
        """The mean over the later half of its evaluations: at a constant rate, one of them says little."""
        later = [value for _, value in self.curve[(len(self.curve) + 1) // 2 :]]
        return mean(later) if later else self.value


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """arms: the script first, then the job with more and more choices. wholes: for each way, a run for every seed."""

    name: str
    metric: str
    plan: Plan
    tuning_seconds: float
    arms: tuple[str, ...]
    protocol: Protocol
    control: Comparison
    measured: Measured
    wholes: Mapping[str, Sequence[Whole]]

    @property
    def command(self) -> str:
        return f"python -m bench.pipeline --only {self.name}"


def write(found: Found, records: Path) -> Path:
    home = write_record(_record(found), records)
    seconds = [middle_seconds(found.measured.windows, arm) for arm in found.arms]
    waterfall(found.arms, seconds, f"{found.name}: a step, by what was added").savefig(home / "waterfall.svg")
    return home


def _record(found: Found) -> Record:
    windows = found.measured.windows
    return Record(
        what=f"pipeline-{found.name}",
        claim=f"{found.name}: a naive script, and the plan that hasten tune found for its training, choice by choice",
        command=found.command,
        protocol=found.protocol,
        control=found.control,
        comparisons=[compare(windows, baseline=NAIVE, challenger=arm) for arm in found.arms[1:]],
        measured=found.measured,
        targets=targets(found),
        packages=("scikit-learn", "pillow", "torchmetrics"),
        findings={
            "tuning_seconds": found.tuning_seconds,
            "total": None if found.plan.total is None else asdict(found.plan.total),
            "wholes": {name: [asdict(run) for run in runs] for name, runs in found.wholes.items()},
        },
        tables=[*steps_table(found), "", "![a step, by what was added](waterfall.svg)", "", *wholes_table(found)],
        remarks=[_of_the_search(found), OF_WHOLE_RUNS, DATA[found.name], *FLOORS],
    )


def targets(found: Found) -> list[Target]:
    judged = [
        _target(f"{way}: times faster than the {NAIVE}, whole runs", least, False, times_faster(found, way))
        for way, least in LEAST_TIMES.items()
        if found.name == OF
    ]
    for way, other in [(PLANNED, NAIVE), (STOPPED, NAIVE), (PLANNED, PLAIN)]:
        if way in found.wholes:
            of_which = "best" if way == STOPPED else "later half of"
            name = f"{way}: {found.metric} lost to the {other}, {of_which} evaluations, whole runs"
            judged.append(_target(name, MOST_LOST[found.metric], True, _lost(found, way, other)))
    if found.plan.total is not None:
        taken = [run.seconds for run in found.wholes[PLANNED]]
        apart = [found.plan.total.planned_seconds / seconds for seconds in taken]
        name = "seconds that the search said of the plan, over seconds taken"
        judged += [_target(name, 1 + MOST_APART, True, mean_interval(apart))]
        judged += [_target(name, 1 - MOST_APART, False, mean_interval(apart))]
    return judged


def times_faster(found: Found, way: str) -> tuple[float, float, float]:
    """Of whole runs of the same seed: low, mean and high of the ratio."""
    naive, ours = ([run.seconds for run in found.wholes[name]] for name in (NAIVE, way))
    return mean_ratio(naive, ours)


def _lost(found: Found, way: str, other: str) -> tuple[float, float, float]:
    """A run that is stopped early keeps its best evaluation's weights, and is held against the other's best one."""
    (sign, best), stops = (-1, max) if found.metric == "accuracy" else (1, min), way == STOPPED
    ours = [run.value if stops else run.settled for run in found.wholes[way]]
    theirs = [best(value for _, value in run.curve) if stops else run.settled for run in found.wholes[other]]
    return mean_interval([sign * (each - before) for before, each in zip(theirs, ours, strict=True)])


def _target(name: str, bound: float, at_most: bool, measured: tuple[float, float, float]) -> Target:
    low, value, high = measured
    return Target(name=name, bound=bound, at_most=at_most, low=low, value=value, high=high)


def steps_table(found: Found) -> list[str]:
    """What each choice adds to those above it."""
    windows = found.measured.windows
    lines = ["| a step of | milliseconds | times faster than the row above |", "|---|---|---|"]
    for before, arm in zip([None, *found.arms], found.arms, strict=False):
        alone = "" if before is None else str(compare(windows, baseline=before, challenger=arm).speedup)
        lines.append(f"| {arm} | {middle_seconds(windows, arm) * 1e3:.3g} | {alone} |")
    return lines


def wholes_table(found: Found) -> list[str]:
    reached, unit = REACHED[found.name], "≥" if found.metric == "accuracy" else "≤"
    head = ["whole runs", "seconds", "times faster", f"final {found.metric}", "later half of evaluations"]
    lines = [f"| {' | '.join([*head, f'seconds to {found.metric} {unit} {reached:g}'])} |", "|---" * 6 + "|"]
    for way, runs in found.wholes.items():
        low, middle, high = times_faster(found, way)
        ratio = "1" if way == NAIVE else f"{middle:.3g} ({low:.3g}–{high:.3g})"
        values = [run.value for run in runs]
        value = f"{mean(values):.4f} ({min(values):.4f} to {max(values):.4f})"
        settled, seconds = mean(run.settled for run in runs), median(run.seconds for run in runs)
        lines.append(f"| {way} | {seconds:.1f} | {ratio} | {value} | {settled:.4f} | {_reached(found, runs)} |")
    return lines


def _reached(found: Found, runs: Sequence[Whole]) -> str:
    """The middle run's seconds to the fixed result, where most of them come to it."""
    times = sorted(seconds_to(run, REACHED[found.name], found.metric == "accuracy") for run in runs)
    middle = times[len(times) // 2]
    return "–" if middle == float("inf") else f"{middle:.1f}"


def seconds_to(run: Whole, value: float, higher: bool) -> float:
    """Until the first evaluation that is as good as that; infinite where none is."""
    good = (seconds for seconds, each in run.curve if (each >= value if higher else each <= value))
    return next(good, float("inf"))


def _of_the_search(found: Found) -> str:
    plain, ours = (median(run.seconds for run in found.wholes[way]) for way in (PLAIN, PLANNED))
    saved = plain - ours
    pays = f"paid back after {ceil(found.tuning_seconds / saved)} runs" if saved > 0 else "never paid back"
    total = found.plan.total
    said = (nan, nan) if total is None else (total.baseline_seconds, total.planned_seconds)
    return (
        f"the search took {found.tuning_seconds:.0f} s, {pays}. It said that the job takes {said[0]:.1f} s, and with "
        f"the plan {said[1]:.1f} s; whole runs took {plain:.1f} s and {ours:.1f} s. Seconds of hasten are all, from "
        f"loading the job's file, with an empty cache; those of the script begin when its data and its model are "
        f"there. From the same seed the job sees the same samples with and without the plan; the script draws its own"
    )


def waterfall(names: Sequence[str], seconds: Sequence[float], title: str) -> Figure:
    """A bar for each arm, and what it takes away from the one above it."""
    figure = Figure(figsize=(7.0, 0.8 + 0.45 * len(names)), layout="constrained")
    axes = figure.subplots()
    places = range(len(names))
    axes.barh(places, [each * 1e3 for each in seconds], color="#1f5fa8")
    for place, (before, after) in enumerate(pairwise(seconds), start=1):
        axes.barh(place, (before - after) * 1e3, left=after * 1e3, color="#c8d6e5" if before > after else "#c0712c")
    for place, each in enumerate(seconds):
        axes.annotate(f" {seconds[0] / each:.3g}×", (max(each, seconds[max(place - 1, 0)]) * 1e3, place), va="center")
    axes.set_yticks(places, names)
    axes.invert_yaxis()
    axes.set_xlabel("milliseconds of a step")
    axes.set_xlim(right=max(seconds) * 1.12e3)
    axes.set_title(title, fontsize="medium", loc="left")
    return figure
