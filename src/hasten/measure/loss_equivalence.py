"""Whether a plan leaves the final loss unharmed, and what the answer is worth.

Two arms train with the same seeds, first weights and order: the plain job and the planned one. Each seed gives a pair
of final values, and the pair's difference is one observation; what the seeds do to both arms alike drops out of it. The
metric and the margin, the largest harm that nobody minds, are written down before anything runs (`Criterion`).

"No significant difference" proves nothing: with few noisy pairs every harm passes. So the burden is turned round, as in
the two one-sided tests of Schuirmann (1987, Journal of Pharmacokinetics and Biopharmaceutics 15:657–680): that the harm
is as large as the margin must be rejected at 5 %, and that the gain is must be, too. Both are exactly when Student's
90 % interval of the mean paired difference lies inside ±margin. Harm is held to the same proof: the interval must lie
wholly beyond the margin. What proves neither is inconclusive, and says how small a harm it could have shown.

A better value is never a harm, but it is not sameness either. A "same statistics" choice promises that training goes on
as it would have; a gain beyond the margin means that something else is being trained (a regulariser lost, data seen
twice), and the next job may pay for it. So both sides count for `equivalent`, a proven gain has its own verdict,
`better`, and who only asks whether harm is ruled out reads `unharmed`, the one-sided test on the bad side.

What was given up: Student's interval believes the differences to be roughly normal, and three pairs cannot show that
they are not. Power takes the measured spread for the true one. The number of pairs is to be fixed beforehand: adding
pairs until the verdict pleases breaks its 5 %, so `pairs_needed` is the size of a new test, with new seeds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from statistics import NormalDist
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from hasten.errors import InvalidMeasurement

LEAST_PAIRS = 3
MOST_PAIRS = 10_000  # nobody runs more; pairs_needed looks no further
ERROR_RATE = 0.05  # of each one-sided test; the interval of both is the 90 % interval
POWER = 0.8
_BELOW = NormalDist().cdf

Verdict = Literal["equivalent", "harmed", "better", "inconclusive"]
Values = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, slots=True)
class Criterion:
    """What is judged and how much harm is tolerated, written down before an arm runs.

    margin: share of the magnitude of the plain arm's mean; 0.005 is half a per cent. Raises InvalidMeasurement when it
    is not positive and finite.
    """

    metric: str = "loss"
    margin: float = 0.005
    higher_is_better: bool = False  # True for an accuracy

    def __post_init__(self) -> None:
        if not 0 < self.margin < math.inf:
            raise InvalidMeasurement(
                f"the margin is {self.margin}",
                where=self.metric,
                fix="give a positive share of the plain arm's mean, such as 0.005",
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class Judgement:
    """A verdict on paired final values. Harms are shares of the magnitude of plain_mean, or of the scale that judge()
    was given, and positive is worse whichever way the metric runs."""

    criterion: Criterion
    verdict: Verdict
    harm: float  # mean paired difference
    low: float  # of its 90 % interval
    high: float
    spread: float  # standard deviation of the differences, n - 1
    visible_harm: float  # the smallest true harm that so many pairs of this spread call harmed with 80 % probability
    pairs: int
    plain_mean: float  # in the metric's own unit

    @property
    def unharmed(self) -> bool:
        """Whether a harm as large as the margin is ruled out, at 5 %; a gain may or may not be."""
        return self.high < self.criterion.margin

    @property
    def pairs_needed(self) -> int | None:
        """The pairs of a new test that settles it with 80 % probability, were `harm` and `spread` the truth. None when
        it is settled, or when that takes more than MOST_PAIRS."""
        if self.verdict != "inconclusive":
            return None
        return _pairs_needed(self.pairs, self.harm, self.spread, self.criterion.margin)

    @property
    def sentence(self) -> str:
        """The verdict in words, with what it could not have seen where it is inconclusive."""
        seen = (
            f"{self.criterion.metric} is {self.verdict} with {self.pairs} pairs: {self.harm:+.2%} (90 % interval "
            f"{self.low:+.2%} to {self.high:+.2%}, positive is worse; margin {self.criterion.margin:.2%})"
        )
        if self.verdict != "inconclusive":
            return seen
        ruled = "; a harm as large as the margin is ruled out, sameness is not shown" if self.unharmed else ""
        many = f"more than {MOST_PAIRS}" if self.pairs_needed is None else f"{self.pairs_needed}"
        return (
            f"{seen}{ruled}; a true harm below {self.visible_harm:.2%} would be called harm less often than "
            f"{POWER:.0%}; if the measured difference is the true one, a new test needs {many} pairs"
        )


def judge(
    plain: Sequence[float], planned: Sequence[float], criterion: Criterion, scale: float | None = None
) -> Judgement:
    """Judge the final values of two arms, one a seed; the k-th of one is paired with the k-th of the other.

    scale: positive, what harms and margin are shares of, where that is not the magnitude of the plain arm's mean.

    Raises InvalidMeasurement for arms of unequal length, fewer than three pairs, a value that is NaN or infinite, and
    a plain arm whose mean is zero up to rounding, to which nothing can be relative.
    """
    before, after = (
        _checked(values, arm, criterion.metric) for arm, values in (("plain", plain), ("planned", planned))
    )
    pairs = len(before)
    if pairs != len(after):
        raise InvalidMeasurement(
            f"plain has {pairs} values and planned {len(after)}", where=criterion.metric, fix="let every pair finish"
        )
    if pairs < LEAST_PAIRS:
        raise InvalidMeasurement(
            f"there are {pairs} pairs, too few for an interval",
            where=criterion.metric,
            fix=f"train at least {LEAST_PAIRS} pairs",
        )
    mean, harms = _harms(before, after, criterion, scale)
    harm, spread = float(harms.mean()), float(harms.std(ddof=1))
    error = spread / math.sqrt(pairs)
    low, high = harm - critical(pairs) * error, harm + critical(pairs) * error
    return Judgement(
        criterion=criterion,
        verdict=_verdict(low, high, criterion.margin),
        harm=harm,
        low=low,
        high=high,
        spread=spread,
        visible_harm=criterion.margin + _visible_shift(pairs) * error,
        pairs=pairs,
        plain_mean=mean,
    )


def final_values(
    plain: Sequence[Sequence[float]], planned: Sequence[Sequence[float]], *, metric: str = "loss"
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """The final value of each curve of both arms: the mean of its last tenth, rounded down, at least one point.

    plain, planned: one curve a seed, one value a step, shape (seeds, steps). Raises InvalidMeasurement when the arms
    have not as many curves, a pair's curves not as many steps, or a curve is empty or anywhere NaN or infinite: a step
    without a value was a step that trained on nothing known, also when the end looks quiet.
    """
    if [len(curve) for curve in plain] != [len(curve) for curve in planned]:
        raise InvalidMeasurement(
            "the arms have not as many curves, or not as many steps in each",
            where=metric,
            fix="let both arms of every pair run the same number of steps",
        )
    return _ends(plain, "plain", metric), _ends(planned, "planned", metric)


@cache
def critical(pairs: int, beyond: float = ERROR_RATE) -> float:
    """The value that Student's t of so many pairs exceeds with this probability; it has one degree of freedom less."""
    return _crossing(lambda bound: -_exceeds(pairs, 0, bound), -beyond)


@cache
def _visible_shift(pairs: int) -> float:
    """How many standard errors beyond the margin a true harm must lie to be called harmed with 80 % probability."""
    return _crossing(lambda shift: _exceeds(pairs, shift, critical(pairs)), POWER)


def _pairs_needed(pairs: int, harm: float, spread: float, margin: float) -> int | None:
    """The fewest pairs, more than there were, that settle it with 80 % probability; None beyond MOST_PAIRS."""

    def enough(count: int) -> bool:
        return _settles(count, harm, spread, margin) >= POWER

    if spread == 0 or not enough(MOST_PAIRS):
        return None
    few, many = pairs, MOST_PAIRS
    while many - few > 1:
        middle = (few + many) // 2
        few, many = (few, middle) if enough(middle) else (middle, many)
    return many


def _settles(pairs: int, harm: float, spread: float, margin: float) -> float:
    """The probability of a verdict other than inconclusive when harm and spread are the true ones."""
    error, bound = spread / math.sqrt(pairs), critical(pairs)

    def inside(ratio: float) -> float:
        return _BELOW((margin - harm) / error - bound * ratio) - _BELOW((-margin - harm) / error + bound * ratio)

    # An interval wider than the room between the margins fits for no mean; the integral ends where that begins.
    equivalent = _mean_over_spreads(pairs, inside, margin / (bound * error))
    harmed, better = (_exceeds(pairs, (side * harm - margin) / error, bound) for side in (1, -1))
    return equivalent + harmed + better


def _exceeds(pairs: int, shift: float, bound: float) -> float:
    """The probability that Student's t exceeds a bound when the true mean lies so many standard errors above zero."""
    return _mean_over_spreads(pairs, lambda ratio: _BELOW(shift - bound * ratio))


def _mean_over_spreads(pairs: int, chance: Callable[[float], float], most: float = math.inf) -> float:
    """The mean of a probability over what the measured spread can be, as a ratio to the true one, up to `most`.

    free · ratio² is chi-squared with free = pairs - 1. Given the spread, the mean is normal, so every probability of
    Student's t, shifted or not, is one smooth integral; Gauss-Legendre solves it to more than ten digits.
    """
    free = pairs - 1
    reach = 10 / math.sqrt(free)  # fourteen standard deviations of the ratio
    low, high = max(0.0, 1 - reach), min(1 + reach, most)
    if high <= low:
        return 0.0
    points, weights = _gauss()
    ratios = (high + low) / 2 + (high - low) / 2 * points
    scale = math.log(2) + free / 2 * math.log(free / 2) - math.lgamma(free / 2)
    density = np.exp(scale + (free - 1) * np.log(ratios) - free * ratios**2 / 2)
    return float((high - low) / 2 * np.sum(weights * density * [chance(ratio) for ratio in ratios.tolist()]))


@cache
def _gauss() -> tuple[Values, Values]:
    return np.polynomial.legendre.leggauss(96)


def _crossing(rising: Callable[[float], float], target: float) -> float:
    """Where a rising function reaches a target, by halving [0, 32] until doubles have no middle to offer."""
    low, high = 0.0, 32.0
    while low < (middle := (low + high) / 2) < high:
        low, high = (low, middle) if rising(middle) >= target else (middle, high)
    return high


def _verdict(low: float, high: float, margin: float) -> Verdict:
    if low > margin:
        return "harmed"
    if high < -margin:
        return "better"
    return "equivalent" if -margin < low and high < margin else "inconclusive"


def _harms(before: Values, after: Values, criterion: Criterion, scale: float | None) -> tuple[float, Values]:
    """The plain arm's mean, and the paired differences as shares, positive where planned is worse."""
    largest = float(np.abs(before).max())
    mean = math.fsum(before / largest) / len(before) if largest > 0 else 0.0  # nothing overflows on the way
    if scale is None and abs(mean) <= np.finfo(np.float64).eps:
        raise InvalidMeasurement(
            "the plain arm's mean is zero, and a margin relative to it means nothing",
            where=criterion.metric,
            fix="judge a metric that stays away from zero",
        )
    mean *= largest
    unit = abs(mean) if scale is None else scale
    with np.errstate(over="ignore"):
        harms = (after / unit - before / unit) * (-1 if criterion.higher_is_better else 1)
    if not np.abs(harms).max() < 1e100:  # a square of it must fit a double, too
        raise InvalidMeasurement(
            "planned is more than 1e100 times as far from plain as plain from zero",
            where=criterion.metric,
            fix="the planned arm diverged; do not adopt the plan",
        )
    return mean, harms


def _ends(curves: Sequence[Sequence[float]], arm: str, metric: str) -> tuple[float, ...]:
    checked = (_checked(curve, f"{arm}, curve {position}", metric) for position, curve in enumerate(curves))
    return tuple(math.fsum(curve[-_tenth(curve) :]) / _tenth(curve) for curve in checked)


def _tenth(curve: Values) -> int:
    return max(1, len(curve) // 10)


def _checked(values: Sequence[float], arm: str, metric: str) -> Values:
    """The values as doubles, shape (values,); nothing that is not finite passes, and nothing is left out."""
    found = np.asarray(values, dtype=np.float64)
    where = f"{metric} of {arm}"
    if found.ndim != 1 or not found.size:
        raise InvalidMeasurement(f"its shape is {found.shape}", where=where, fix="give a row of one number or more")
    wrong = np.flatnonzero(~np.isfinite(found))
    if wrong.size:
        raise InvalidMeasurement(
            f"value {wrong[0]} is {found[wrong[0]]}",
            where=where,
            fix="find what the arm did there; nothing is filtered or averaged away",
        )
    return found
