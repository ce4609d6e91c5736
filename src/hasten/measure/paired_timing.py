"""How many times faster one arm is than another, with its confidence interval.

Two arms take turns in windows of steps: A B B A A B B A … Neighbouring windows make a pair, and only windows of one
pair are compared, so slow drift affects both sides of every ratio.

The estimate is the median of the paired log-ratios. The interval resamples whole pairs, since windows inside a pair are
not independent. It is the percentile bootstrap (Efron 1979) with tails widened for few samples (expanded percentile
interval, Hesterberg 2015, arXiv:1411.5279); the plain one would call twelve pairs of equal arms different too often.

Two processes of the same code can differ by a few per cent for as long as they live, because their memory layout
differs. When the arms are started several times, the independent pair is the middle window of each arm in one start.
For few starts see `over_processes`.

`compare` needs twelve pairs: the resampled median of fewer takes too few values. `early_speedup` answers from fewer, to
decide which arms to drop: the mean of the log-ratios with Student's interval ("Student" 1908, Biometrika 6, 1-25),
which assumes normal, independent ratios. Nothing is filtered: one impossible window makes the comparison invalid.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from statistics import NormalDist, mean, stdev

import numpy as np
from numpy.typing import NDArray

from hasten.errors import InvalidMeasurement
from hasten.facts.plan import Speedup
from hasten.measure.loss_equivalence import critical

LEAST_PAIRS = 12
TAIL = 0.025  # beyond each end of a 95 % interval
_RESAMPLES = 4_000
_SEED = 0  # of the resampling: the same windows always give the same interval
_NORMAL = NormalDist()

Samples = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, slots=True)
class Window:
    """One uninterrupted stretch of steps of one arm; seconds from before its first step to after its last."""

    arm: str
    steps: int
    seconds: float
    start: int = 0  # which of the arm's processes ran it

    @property
    def seconds_per_step(self) -> float:
        return self.seconds / self.steps


@dataclass(frozen=True, kw_only=True, slots=True)
class ExtraCost:
    """Extra seconds of a challenger's step: the median of paired differences with its 95 % interval. Negative where the
    challenger is faster."""

    seconds: float
    low: float
    high: float
    pairs: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """A verdict on two arms, with every window that it was computed from."""

    baseline: str
    challenger: str
    speedup: Speedup
    extra: ExtraCost
    pairs: tuple[tuple[Window, Window], ...]  # (baseline, challenger), in the order they ran
    windows: tuple[Window, ...]  # all of the two arms, in the order they ran

    @property
    def differs(self) -> bool:
        """Whether the interval excludes 1."""
        return not self.speedup.low <= 1 <= self.speedup.high


def interleaved(arms: Sequence[str], rounds: int) -> tuple[str, ...]:
    """The order of windows: every arm once a round, every second round reversed, so two arms run A B B A A B B A …"""
    return tuple(arm for turn in range(rounds) for arm in (arms if turn % 2 == 0 else reversed(arms)))


def compare(windows: Iterable[Window], *, baseline: str, challenger: str) -> Comparison:
    """Compare two arms by their windows, in the order they ran; windows of other arms are ignored.

    The k-th window of one arm is paired with the k-th of the other. Where the arms were started more than once, the
    middle windows of the k-th starts are paired. Raises InvalidMeasurement when a window has no step or a duration that
    is NaN, infinite, zero or negative, when the arms differ in their number of windows, or for fewer than twelve pairs.
    """
    windows = tuple(window for window in windows if window.arm in (baseline, challenger))
    for position, window in enumerate(windows):
        _check(window, position)
    pairs = _paired(windows, baseline, challenger)
    ours = np.array([[first.seconds_per_step, second.seconds_per_step] for first, second in pairs])
    low, middle, high = (math.exp(value) for value in estimate(_median, np.log(ours[:, 0]) - np.log(ours[:, 1])))
    cheapest, extra, dearest = estimate(_median, ours[:, 1] - ours[:, 0])
    return Comparison(
        baseline=baseline,
        challenger=challenger,
        speedup=Speedup(ratio=middle, low=low, high=high, pairs=len(pairs)),
        extra=ExtraCost(seconds=extra, low=cheapest, high=dearest, pairs=len(pairs)),
        pairs=pairs,
        windows=windows,
    )


def early_speedup(ratios: Sequence[float]) -> Speedup:
    """From few pairs: the geometric mean of their ratios and its 95 % interval by Student's t.

    Raises InvalidMeasurement for fewer than two ratios, or one that is NaN, infinite, zero or negative.
    """
    if len(ratios) < 2 or not all(0 < ratio < math.inf for ratio in ratios):
        what = f"ratios of {ratios} have no spread"
        raise InvalidMeasurement(what, fix="measure at least two pairs; nothing is filtered")
    logs = [math.log(ratio) for ratio in ratios]
    reach = critical(len(logs), TAIL) * stdev(logs) / math.sqrt(len(logs))
    low, middle, high = (math.exp(mean(logs) + side * reach) for side in (-1, 0, 1))
    return Speedup(ratio=middle, low=low, high=high, pairs=len(logs))


def estimate(statistic: Callable[[Samples], Samples], samples: Samples) -> tuple[float, float, float]:
    """Low end of the 95 % interval, value, and high end, of a statistic over pairs.

    samples: one row a pair, shape (pairs, …). statistic: (resamples, pairs, …) -> (resamples,); it also receives the
    samples themselves as a single resample. Raises InvalidMeasurement for fewer than twelve pairs, or a sample that is
    not finite.
    """
    if len(samples) < LEAST_PAIRS:
        raise InvalidMeasurement(
            f"there are {len(samples)} pairs of windows, too few for a confidence interval",
            fix=f"measure at least {LEAST_PAIRS} pairs",
        )
    if not np.isfinite(samples).all():
        raise InvalidMeasurement("a sample is NaN or infinite", fix="check what happened there; nothing is filtered")
    drawn = np.random.default_rng(_SEED).integers(len(samples), size=(_RESAMPLES, len(samples)))
    tail = _tail(len(samples))
    low, high = np.quantile(statistic(samples[drawn]), (tail, 1 - tail))
    value = float(statistic(samples[None])[0])
    # A resampled median of few pairs is coarse; the interval always contains the value itself.
    return min(float(low), value), value, max(float(high), value)


def _tail(pairs: int) -> float:
    """The share of resamples beyond each end of the 95 % interval: 0.025 for many pairs, less for few.

    Student's quantile is its expansion in 1 / degrees of freedom, not scipy's exact one: with few pairs the resampled
    median is so coarse that another digit here would change the intervals of published records.
    """
    normal, free = _NORMAL.inv_cdf(1 - TAIL), pairs - 1
    student = (
        normal + (normal**3 + normal) / (4 * free) + (5 * normal**5 + 16 * normal**3 + 3 * normal) / (96 * free**2)
    )
    return _NORMAL.cdf(-student * math.sqrt(pairs / free))


def _median(resamples: Samples) -> Samples:
    return np.median(resamples, axis=1)


def _paired(windows: Sequence[Window], baseline: str, challenger: str) -> tuple[tuple[Window, Window], ...]:
    first, second = ([window for window in windows if window.arm == arm] for arm in (baseline, challenger))
    counts = [Counter(window.start for window in side) for side in (first, second)]
    if counts[0] != counts[1]:
        raise InvalidMeasurement(
            f'"{baseline}" ran {len(first)} windows and "{challenger}" {len(second)}', fix="let every round finish"
        )
    if len(counts[0]) > 1:
        first, second = _middles(first), _middles(second)
    return tuple(zip(first, second, strict=True))


def _middles(windows: Sequence[Window]) -> list[Window]:
    """The middle window of each start; of two in the middle, the shorter one."""
    starts = dict.fromkeys(window.start for window in windows)
    alike = ([window for window in windows if window.start == start] for start in starts)
    return [sorted(each, key=attrgetter("seconds_per_step"))[(len(each) - 1) // 2] for each in alike]


def _check(window: Window, position: int) -> None:
    where = f'window {position} of "{window.arm}"'
    if window.steps < 1:
        raise InvalidMeasurement(f"it ran {window.steps} steps", where=where, fix="a window runs at least one step")
    if not 0 < window.seconds < math.inf:
        raise InvalidMeasurement(
            f"it took {window.seconds} seconds", where=where, fix="measure again; nothing is filtered"
        )


def over_processes(found: Speedup, starts: Sequence[float], equal: Sequence[float]) -> Speedup:
    """Widen the interval of a ratio so that it also holds for other processes of the same code.

    Windows of one process share its memory layout, so resampling them says nothing about other processes. Each start
    gives a ratio of its own. The interval is Student's over starts, pooled with the ratios of two equal arms about
    their known mean of 1. With one start, the ratio is returned unchanged.

    starts: the ratio in each start; equal: that of two equal arms in each start. All above 0.
    """
    if len(starts) < 2:
        return found
    logs, equal_logs = [math.log(ratio) for ratio in starts], [math.log(ratio) for ratio in equal]
    centre, free = mean(logs), len(logs) - 1 + len(equal_logs)
    spread = math.sqrt(math.fsum([*((log - centre) ** 2 for log in logs), *(log**2 for log in equal_logs)]) / free)
    reach = math.exp(critical(free + 1, TAIL) * spread / math.sqrt(len(logs)))
    return replace(found, low=min(found.low, found.ratio / reach), high=max(found.high, found.ratio * reach))
