"""How many times faster one arm is than another, and how sure that is.

Two arms of a comparison take turns in windows of steps: A B B A A B B A … Windows next to each other make a pair, and
only windows of one pair are compared. What drifts slowly (a warming chip, a busy neighbour) then falls on both sides of
every ratio, and the changing order keeps "always second" from looking like a property of an arm.

The estimate is the median of the paired log-ratios: one disturbed window moves it little, and swapping the arms turns
it into exactly its inverse. The interval resamples whole pairs, because pairs are what is independent; the windows
inside one are not. It is the percentile bootstrap (Efron 1979) with tails widened for few samples (the expanded
percentile interval, Hesterberg 2015, arXiv:1411.5279): the plain one would call twelve pairs of equal arms different
too often.

Two processes of the same code can differ by a few per cent for as long as they live, because their memory lies
differently. Where that matters the arms are started several times, and a pair is what is independent then: of the
processes that were started together, the middle window of either side. These two need not have been neighbours, so
drift within a start is not cancelled but widens the interval. Of fewer starts, see processes.py.

A result needs twelve pairs. Of fewer, the resampled median takes too few values for its interval to be believed, so
`compare` refuses. What is to be dropped early has to be told from fewer, and `early_speedup` does it at a price: it
takes the log-ratios for normal and independent, and gives their mean with Student's interval ("Student" 1908,
Biometrika 6, 1-25), which is exact where that holds and has no defence against the one disturbed window that the
median shrugs off. It says who need not be measured further; how much faster a whole plan is, it never says.

Nothing is ever filtered: one window without a step or with an impossible duration makes the whole comparison invalid.
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
from hasten.facts.choice import Speedup
from hasten.measure.loss_equivalence import critical

LEAST_PAIRS = 12
TAIL = 0.025  # beyond each end of a 95 % interval
_RESAMPLES = 4_000
_SEED = 0  # of the resampling alone: the same windows give the same interval, everywhere
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
    """Seconds that a step of the challenger takes more than one of the baseline, as a median of paired differences with
    its 95 % interval. Negative where the challenger is faster."""

    seconds: float
    low: float
    high: float
    pairs: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """A verdict on two arms, with every window that it was drawn from."""

    baseline: str
    challenger: str
    speedup: Speedup
    extra: ExtraCost
    pairs: tuple[tuple[Window, Window], ...]  # (baseline, challenger), in the order they ran
    windows: tuple[Window, ...]  # all of the two arms, in the order they ran

    @property
    def differs(self) -> bool:
        """False when "no difference" is still a possible answer: when the interval contains 1."""
        return not self.speedup.low <= 1 <= self.speedup.high


def interleaved(arms: Sequence[str], rounds: int) -> tuple[str, ...]:
    """Whose turn it is: every arm once a round, every other round backwards, so that two arms run A B B A A B B A …"""
    return tuple(arm for turn in range(rounds) for arm in (arms if turn % 2 == 0 else reversed(arms)))


def compare(windows: Iterable[Window], *, baseline: str, challenger: str) -> Comparison:
    """Compare two arms by their windows, in the order they ran; windows of other arms are left aside.

    The k-th window of one arm is paired with the k-th of the other; where the arms were started more than once, the
    middle window of the k-th start with that of the other's. Raises InvalidMeasurement when a window has no step, a
    duration that is NaN, infinite, zero or negative, when the arms have unequally many windows, or when there are fewer
    than twelve pairs.
    """
    windows = tuple(window for window in _checked(windows) if window.arm in (baseline, challenger))
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
    """Of few pairs: the geometric mean of their ratios and its 95 % interval by Student's t.

    Raises InvalidMeasurement when there are fewer than two, or a ratio is NaN, infinite, zero or negative.
    """
    if len(ratios) < 2:
        raise InvalidMeasurement(f"there are {len(ratios)} pairs, which have no spread", fix="measure two at least")
    if not all(math.isfinite(ratio) and ratio > 0 for ratio in ratios):
        raise InvalidMeasurement(f"a ratio of {ratios} is impossible", fix="measure again; nothing is filtered")
    logs = [math.log(ratio) for ratio in ratios]
    reach = critical(len(logs), TAIL) * stdev(logs) / math.sqrt(len(logs))
    low, middle, high = (math.exp(mean(logs) + side * reach) for side in (-1, 0, 1))
    return Speedup(ratio=middle, low=low, high=high, pairs=len(logs))


def estimate(statistic: Callable[[Samples], Samples], samples: Samples) -> tuple[float, float, float]:
    """The low end of the 95 % interval, the value itself, and the high end, of a statistic over pairs.

    samples: one row a pair, shape (pairs, …). statistic: (resamples, pairs, …) -> (resamples,); it is given the samples
    themselves as a single resample, too. Raises InvalidMeasurement with fewer than twelve pairs or a sample not finite.
    """
    if len(samples) < LEAST_PAIRS:
        raise InvalidMeasurement(
            f"there are {len(samples)} pairs of windows, too few for an interval",
            fix=f"measure at least {LEAST_PAIRS} pairs",
        )
    if not np.isfinite(samples).all():
        raise InvalidMeasurement("a sample is NaN or infinite", fix="find what the arm did there; nothing is filtered")
    drawn = np.random.default_rng(_SEED).integers(len(samples), size=(_RESAMPLES, len(samples)))
    tail = _tail(len(samples))
    low, high = np.quantile(statistic(samples[drawn]), (tail, 1 - tail))
    value = float(statistic(samples[None])[0])
    # A resampled median of few pairs is coarse; the value itself always belongs to what is possible.
    return min(float(low), value), value, max(float(high), value)


def _tail(pairs: int) -> float:
    """The share of resamples beyond each end of the 95 % interval; 0.025 for very many pairs, less for few."""
    normal, free = _NORMAL.inv_cdf(0.975), pairs - 1
    # Student's quantile by its expansion in 1 / degrees of freedom; exact to four digits from eleven degrees on.
    student = (
        normal + (normal**3 + normal) / (4 * free) + (5 * normal**5 + 16 * normal**3 + 3 * normal) / (96 * free**2)
    )
    return _NORMAL.cdf(-student * math.sqrt(pairs / free))


def _median(resamples: Samples) -> Samples:
    return np.median(resamples, axis=1)


def _checked(windows: Iterable[Window]) -> Iterable[Window]:
    for position, window in enumerate(windows):
        _check(window, position)
        yield window


def _paired(windows: Sequence[Window], baseline: str, challenger: str) -> tuple[tuple[Window, Window], ...]:
    if baseline == challenger:
        raise InvalidMeasurement(f'both arms are called "{baseline}"', fix="give the control another name")
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
    if not (math.isfinite(window.seconds) and window.seconds > 0):
        raise InvalidMeasurement(
            f"it took {window.seconds} seconds", where=where, fix="measure again; nothing is filtered or averaged away"
        )


def over_processes(found: Speedup, starts: Sequence[float], equal: Sequence[float]) -> Speedup:
    """The ratio with the wider of its interval and the one over starts.

    starts: the ratio in each start; equal: that of two equal arms, in each start that they were in. All above 0.
    """
    if len(starts) < 2:
        return found
    logs, apart = [math.log(ratio) for ratio in starts], [math.log(ratio) for ratio in equal]
    centre, free = mean(logs), len(logs) - 1 + len(apart)
    spread = math.sqrt(math.fsum([*((log - centre) ** 2 for log in logs), *(log**2 for log in apart)]) / free)
    reach = math.exp(critical(free + 1, TAIL) * spread / math.sqrt(len(logs)))
    return replace(found, low=min(found.low, found.ratio / reach), high=max(found.high, found.ratio * reach))
