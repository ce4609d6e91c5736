"""What bench/pipeline.py has measured, as a record: two tables, a picture and the targets."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from math import ceil
from pathlib import Path
from statistics import mean, median

from bench.arms import Measured, Protocol
from bench.judging import mean_interval, mean_ratio, middle_seconds
from bench.pipeline_jobs import PATIENCE
from bench.record import Record, Target, write_record
from matplotlib.figure import Figure

from hasten.facts.plan import Between, Plan
from hasten.measure.paired_timing import Comparison, compare

NAIVE, PLAIN = "naive script", "job without a plan"
PLANNED, STOPPED = "plan", "plan and early stopping"

# Fixed before the first run, but for what is lost in the later half of evaluations: that is asked since a first run
# whose last evaluation fell. How many times faster whole runs are is asked of the script that the goal is about.
LEAST_TIMES, OF = {PLANNED: 5.0, STOPPED: 10.0}, "images"
MOST_APART = 0.10  # of what the search says and what whole runs take
MOST_LOST = {"accuracy": 0.01, "loss": 0.02}  # of the final result, in its own unit
SEEDS = 5  # of whole runs, where nobody asks for another number
FEW = 3  # evaluations, of which half tell no more than the last one
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


OF_STEPS = (
    "arms that cache what they read find it kept by the control: what that takes is in the whole runs, and neither in "
    "what is built nor in the break-even step"
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

    def stopped(self, *, higher: bool) -> Whole:
        """As it would have been, had the rule of the stopped jobs ended it: with its best evaluation until then."""
        best, since = self.curve[0][1], 0
        for count, (seconds, value) in enumerate(self.curve[1:], start=2):
            best, since = (value, 0) if (value > best if higher else value < best) else (best, since + 1)
            if since == PATIENCE:
                return Whole(seconds=seconds, value=best, curve=self.curve[:count])
        return Whole(seconds=self.seconds, value=best, curve=self.curve)


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
        seeds = len(self.wholes[NAIVE])
        return f"python -m bench.pipeline --only {self.name}{'' if seeds == SEEDS else f' --seeds {seeds}'}"


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
        remarks=[_of_the_search(found), *of_stopping(found), OF_WHOLE_RUNS, OF_STEPS, DATA[found.name], *FLOORS],
    )


def targets(found: Found) -> list[Target]:
    judged = [
        _target(f"{way}: times faster than the {NAIVE}, whole runs", least, False, times_faster(found, way))
        for way, least in LEAST_TIMES.items()
        if found.name == OF
    ]
    judged += [_target(name, MOST_LOST[found.metric], True, lost) for name, lost in _losses(found).items()]
    if found.plan.total is not None:
        taken = [run.seconds for run in found.wholes[PLANNED]]
        of_training = found.plan.total.planned_seconds - found.plan.total.process_seconds
        apart = [of_training / seconds for seconds in taken]
        name = "seconds that the search said of the plan, over seconds taken"
        judged += [_target(name, 1 + MOST_APART, True, mean_interval(apart))]
        judged += [_target(name, 1 - MOST_APART, False, mean_interval(apart))]
    return judged


def times_faster(found: Found, way: str) -> tuple[float, float, float]:
    """Of whole runs of the same seed: low, mean and high of the ratio."""
    naive, ours = ([run.seconds for run in found.wholes[name]] for name in (NAIVE, way))
    return mean_ratio(naive, ours)


def _losses(found: Found) -> dict[str, tuple[float, float, float]]:
    """Of results, from the same seeds. A run that is stopped early keeps its best evaluation's weights, and is held
    against the other's best one."""
    sign, best = (-1, max) if found.metric == "accuracy" else (1, min)
    pairs = {PLANNED: (NAIVE, PLAIN), STOPPED: (NAIVE,)}
    results: dict[str, dict[str, Callable[[Whole], float]]] = {
        PLANNED: {"last evaluation": lambda run: run.value},
        STOPPED: {"best evaluation": lambda run: best([run.value, *(value for _, value in run.curve)])},
    }
    if all(len(run.curve) > FEW for run in found.wholes[PLANNED]):
        results[PLANNED]["later half of evaluations"] = lambda run: run.settled
    return {
        f"{way}: {found.metric} lost to the {other}, {which}, whole runs": mean_interval(
            [sign * (result(ours) - result(theirs)) for ours, theirs in _beside(found, way, other)]
        )
        for way in pairs
        if way in found.wholes
        for other in pairs[way]
        for which, result in results[way].items()
    }


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
        ratio = "1" if way == NAIVE else _ratio(times_faster(found, way))
        values = [run.value for run in runs]
        value = f"{mean(values):.4f} ({min(values):.4f} to {max(values):.4f})"
        settled = "–" if way == STOPPED else f"{mean(run.settled for run in runs):.4f}"
        seconds = median(run.seconds for run in runs)
        lines.append(f"| {way} | {seconds:.1f} | {ratio} | {value} | {settled} | {_reached(found, runs)} |")
    return lines


def _ratio(found: tuple[float, float, float]) -> str:
    low, middle, high = found
    return f"{middle:.3g} ({low:.3g}–{high:.3g})"


def _reached(found: Found, runs: Sequence[Whole]) -> str:
    """The middle run's seconds to the fixed result, where most of them come to it."""
    times = sorted(seconds_to(run, REACHED[found.name], found.metric == "accuracy") for run in runs)
    middle = times[len(times) // 2]
    return "–" if middle == float("inf") else f"{middle:.1f}"


def seconds_to(run: Whole, value: float, higher: bool) -> float:
    """Until the first evaluation that is as good as that; infinite where none is."""
    good = (seconds for seconds, each in run.curve if (each >= value if higher else each <= value))
    return next(good, float("inf"))


def of_stopping(found: Found) -> list[str]:
    """Of what stopping alone does: the script's own runs, cut where the rule would have cut them."""
    if STOPPED not in found.wholes:
        return []
    stopped = [run.stopped(higher=found.metric == "accuracy") for run in found.wholes[NAIVE]]
    script, ours = [run.seconds for run in stopped], [run.seconds for run in found.wholes[STOPPED]]
    early = sum(len(run.curve) < len(whole.curve) for run, whole in _beside(found, STOPPED, PLANNED))
    return [
        f"early stopping ended {early} of the plan's {len(ours)} runs before their end. The same rule would have ended "
        f"the script's own runs after {median(script):.1f} s, at a best {found.metric} of "
        f"{mean(run.value for run in stopped):.4f}: {_ratio(mean_ratio(script, ours))} times the seconds of the plan "
        "with early stopping"
    ]


def _of_the_search(found: Found) -> str:
    return (
        f"the search took {found.tuning_seconds:.0f} s, {payback(found)}. {foretold(found)}Seconds of hasten are "
        "all, from loading the job's file, with an empty cache; those of the script begin when its data and its model "
        "are there. "
        "From the same seed the job sees the same samples with and without the plan; the script draws its own"
    )


def foretold(found: Found) -> str:
    """Beside the seconds, which are also those of a machine that is slower at one time than at another, the ratio."""
    total = found.plan.total
    if total is None:
        return ""
    said, promised = total.baseline_seconds, total.planned_seconds
    plain, ours = ([run.seconds for run in found.wholes[way]] for way in (PLAIN, PLANNED))
    ratio = _ratio(mean_ratio(plain, ours))
    return (
        f"It said that the job takes {said:.1f} s{_most(total.baseline_between)}, and with the plan {promised:.1f} s"
        f"{_most(total.planned_between)}, {said / promised:.3g} times as fast; "
        f"whole runs took {median(plain):.1f} s and {median(ours):.1f} s, {ratio} times as fast. "
    )


def _most(between: Between | None) -> str:
    return "" if between is None else f" ({between.low:.1f}–{between.high:.1f} by most windows)"


def payback(found: Found) -> str:
    """By what a run by the plan saves of the one from the same seed without it."""
    low, saved, high = mean_interval([plain.seconds - ours.seconds for plain, ours in _beside(found, PLAIN, PLANNED)])
    if low <= 0:
        return "and whether a run saves anything of it is undecided"
    runs, least, most = (ceil(found.tuning_seconds / seconds) for seconds in (saved, high, low))
    return f"paid back after {runs} runs ({least} to {most})"


def _beside(found: Found, way: str, other: str) -> Iterable[tuple[Whole, Whole]]:
    """From the same seed."""
    return zip(found.wholes[way], found.wholes[other], strict=True)


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
