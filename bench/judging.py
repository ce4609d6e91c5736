"""What every benchmark does with its figures: look at the control, judge the targets, write the record."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import exp, log
from pathlib import Path
from statistics import mean, median, stdev

import numpy as np
from bench.arms import Arm, Protocol, control
from bench.record import Record, Target, write_record
from scipy.stats import t as student

from hasten.measure.paired_timing import Comparison, Window, compare, estimate


def controlled(arm: Arm, protocol: Protocol) -> Comparison:
    """The arm against itself, shown before anything else is measured."""
    itself = control(arm, protocol)
    print(f"control, {arm.name}: {itself.speedup}", flush=True)
    if itself.differs:
        print("the control found a difference where there is none: read what follows with doubt", flush=True)
    return itself


def speed_targets(windows: Sequence[Window], least: Iterable[tuple[str, str, float]], unit: str) -> list[Target]:
    """least: (arm, over which other one, at least), fixed before the run. Those of arms that were measured.

    unit: what is counted, in the plural: "batches".
    """
    measured = {window.arm for window in windows}
    found: list[Target] = []
    for ours, other, bound in least:
        if {ours, other} <= measured:
            ratio = compare(windows, baseline=other, challenger=ours).speedup
            name = f"{ours}: {unit} for each one of {other}"
            found.append(
                Target(name=name, bound=bound, at_most=False, low=ratio.low, value=ratio.ratio, high=ratio.high)
            )
    return found


def middle_seconds(windows: Sequence[Window], arm: str) -> float:
    """Of a step, the median of the arm's windows."""
    return median(window.seconds_per_step for window in windows if window.arm == arm)


def median_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """The median over windows between the ends of its 95 % interval: low, median, high."""
    return estimate(lambda resamples: np.median(resamples, axis=1), np.array(values))


def mean_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """The mean between the ends of its 95 % interval, Student's: low, mean, high. Of one value, that value."""
    middle = mean(values)
    if len(values) < 2:
        return middle, middle, middle
    reach = stdev(values) / len(values) ** 0.5 * float(student.ppf(0.975, len(values) - 1))
    return middle - reach, middle, middle + reach


def mean_ratio(over: Sequence[float], under: Sequence[float]) -> tuple[float, float, float]:
    """The geometric mean of the ratios of what was measured in pairs, between the ends of its 95 % interval."""
    low, middle, high = mean_interval([log(above / below) for above, below in zip(over, under, strict=True)])
    return exp(low), exp(middle), exp(high)


def conclude(record: Record, records: Path | None) -> None:
    """Show the targets and write the record into a folder below `records`; None: a quick run, which judges nothing."""
    for target in record.targets:
        print(f"{target.name}: {target.value:.3g} ({target.low:.3g} to {target.high:.3g}), {target.outcome}")
    if records is None:
        print("--quick judges nothing: no record was written", flush=True)
        return
    print(f"written: {write_record(record, records)}", flush=True)
