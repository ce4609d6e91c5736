"""Whether a plan leaves the final loss unharmed: a paired equivalence test (TOST), with its power stated.

Baseline and plan train from the same seeds, with the same first weights and data order. Each seed gives one pair of
final values, and the pair's difference is one observation. Metric and margin, the largest harm that is tolerated, are
fixed before anything runs (`Criterion`).

The two one-sided tests of Schuirmann (1987, Journal of Pharmacokinetics and Biopharmaceutics 15:657–680) must both
reject at 5 %: that the harm is as large as the margin, and that the gain is. This holds exactly when Student's 90 %
interval of the mean paired difference lies inside ±margin. `harmed` and `better` require an interval wholly beyond it.
Anything else is inconclusive, and states the smallest harm that the test could have shown.

A gain beyond the margin is not equivalence: something else is being trained, for example without a regulariser.

Limits: Student's interval assumes roughly normal differences, which three pairs cannot confirm. Power takes the
measured spread as the true one. Fix the number of pairs beforehand: adding pairs until the verdict pleases breaks the
5 %, so `pairs_needed` is the size of a new test, with new seeds.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from hasten.errors import InvalidMeasurement

LEAST_PAIRS = 3
MOST_PAIRS = 10_000  # pairs_needed searches no further
ERROR_RATE = 0.05  # of each one-sided test; the interval of both is the 90 % interval
POWER = 0.8

Verdict = Literal["equivalent", "harmed", "better", "inconclusive"]
Values = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, slots=True)
class Criterion:
    """What is judged and how much harm is tolerated, fixed before any training starts.

    margin: share of the magnitude of the baseline's mean, above 0; 0.005 is half a per cent.
    """

    metric: str = "loss"
    margin: float = 0.005
    higher_is_better: bool = False  # True for an accuracy


@dataclass(frozen=True, kw_only=True, slots=True)
class Judgement:
    """A verdict on paired final values. Harms are shares of the magnitude of plain_mean, or of the scale given to
    judge(). A positive harm is worse, whether or not a higher metric is better."""

    criterion: Criterion
    verdict: Verdict
    harm: float  # mean paired difference
    low: float  # of its interval, which is 90 % where error_rate is 5 %
    high: float
    spread: float  # standard deviation of the differences, n - 1
    visible_harm: float  # smallest true harm that this test calls harmed with 80 % probability
    pairs: int
    plain_mean: float  # of the baseline, in the metric's own unit
    error_rate: float = ERROR_RATE  # beyond each end of the interval

    @property
    def unharmed(self) -> bool:
        """Whether a harm as large as the margin is ruled out at 5 %."""
        return self.high < self.criterion.margin

    @property
    def pairs_needed(self) -> int | None:
        """Size of a new test that is conclusive with 80 % probability, or a little more, if `harm` and `spread` are the
        true values. None when the verdict is conclusive, or when it takes more than MOST_PAIRS."""
        return _pairs_needed(self.harm, self.spread, self.criterion.margin) if self.verdict == "inconclusive" else None

    @property
    def sentence(self) -> str:
        """The verdict in words; an inconclusive one says what it could not have shown."""
        interval = f"{_in_words(self.low)} to {_in_words(self.high)}"
        seen = (
            f"{self.criterion.metric} is {self.verdict} with {self.pairs} pairs: {_in_words(self.harm)} with the plan "
            f"({100 - 200 * self.error_rate:.0f} % interval {interval}; {self.criterion.margin:.2%} is tolerated)"
        )
        if self.verdict != "inconclusive":
            return seen
        ruled_out = "; a harm as large as that is ruled out, equivalence is not shown" if self.unharmed else ""
        needed = self.pairs_needed
        many = f"more than {MOST_PAIRS}" if needed is None else f"{needed}"
        return (
            f"{seen}{ruled_out}; a test of this size often misses a true harm below {self.visible_harm:.2%}; if the "
            f"measured difference is the true one, a new test needs {many} pairs"
        )


def _in_words(harm: float) -> str:
    return f"{abs(harm):.2%} {'worse' if harm > 0 else 'better'}" if harm else "0 %"


def judge(
    plain: Sequence[float],
    planned: Sequence[float],
    criterion: Criterion,
    scale: float | None = None,
    error_rate: float = ERROR_RATE,
) -> Judgement:
    """Judge the final values of baseline and plan, one value a seed; equal positions are one pair.

    scale: positive; harms and margin are shares of it. Default: the magnitude of the baseline's mean. error_rate: of
    each of the two tests.

    Three pairs at least. Raises InvalidMeasurement for a value that is NaN or infinite, and for a mean of the baseline
    that is zero up to rounding.
    """
    before = _checked(plain, "plain", criterion.metric)
    after = _checked(planned, "planned", criterion.metric)
    pairs = len(before)
    mean, harms = _harms(before, after, criterion, scale)
    harm, spread = float(harms.mean()), float(harms.std(ddof=1))
    error = spread / math.sqrt(pairs)
    reach = critical(pairs, error_rate) * error
    low, high = harm - reach, harm + reach
    return Judgement(
        criterion=criterion,
        verdict=_verdict(low, high, criterion.margin),
        harm=harm,
        low=low,
        high=high,
        spread=spread,
        visible_harm=criterion.margin + _visible_shift(pairs, error_rate=error_rate) * error,
        pairs=pairs,
        plain_mean=mean,
        error_rate=error_rate,
    )


def final_values(
    plain: Sequence[Sequence[float]], planned: Sequence[Sequence[float]], *, metric: str = "loss"
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """The final value of each curve of both arms: the mean of its last tenth, rounded down, at least one point.

    plain, planned: one curve a seed, one value a step, shape (seeds, steps). Raises InvalidMeasurement when the arms
    differ in curves or in steps, or when a curve is empty or has a value that is NaN or infinite at any step.
    """
    if [len(curve) for curve in plain] != [len(curve) for curve in planned]:
        raise InvalidMeasurement(
            "the two arms have different numbers of runs or steps",
            where=metric,
            fix="let both arms of every pair run the same number of steps",
        )
    return _ends(plain, "plain", metric), _ends(planned, "planned", metric)


@cache
def critical(pairs: int, beyond: float = ERROR_RATE) -> float:
    """The value that Student's t with pairs - 1 degrees of freedom exceeds with this probability."""
    from scipy.special import stdtrit  # scipy takes longer to load than most commands run

    return float(stdtrit(pairs - 1, 1 - beyond))


@cache
def _visible_shift(pairs: int, power: float = POWER, error_rate: float = ERROR_RATE) -> float:
    """How many standard errors beyond the margin a true harm must lie to be called harmed with this probability: the
    shift of the non-central t distribution."""
    from scipy.special import nctdtrinc

    return float(nctdtrinc(pairs - 1, 1 - power, critical(pairs, error_rate)))


def _pairs_needed(harm: float, spread: float, margin: float) -> int | None:
    """Inside the margin both tests must reject, so that each of them may fail half as often."""
    distance = abs(margin - abs(harm))
    power = POWER if abs(harm) > margin else (1 + POWER) / 2

    def enough(pairs: int) -> bool:
        return _visible_shift(pairs, power) * spread / math.sqrt(pairs) <= distance

    if distance == 0 or not enough(MOST_PAIRS):
        return None
    return bisect_left(range(MOST_PAIRS), True, lo=LEAST_PAIRS, key=enough)


def _verdict(low: float, high: float, margin: float) -> Verdict:
    if low > margin:
        return "harmed"
    if high < -margin:
        return "better"
    return "equivalent" if -margin < low and high < margin else "inconclusive"


def _harms(before: Values, after: Values, criterion: Criterion, scale: float | None) -> tuple[float, Values]:
    """The baseline's mean, and the paired differences as shares, positive where the plan is worse."""
    mean = float(before.mean())
    if scale is None and abs(mean) <= np.finfo(np.float64).eps * np.abs(before).max():
        raise InvalidMeasurement(
            "the baseline's mean is zero, so no margin can be relative to it",
            where=criterion.metric,
            fix="judge a metric that stays away from zero",
        )
    unit = abs(mean) if scale is None else scale
    return mean, (after - before) / unit * (-1 if criterion.higher_is_better else 1)


def _ends(curves: Sequence[Sequence[float]], arm: str, metric: str) -> tuple[float, ...]:
    checked = (_checked(curve, f"{arm}, curve {position}", metric) for position, curve in enumerate(curves))
    return tuple(float(curve[-max(1, len(curve) // 10) :].mean()) for curve in checked)


def _checked(values: Sequence[float], arm: str, metric: str) -> Values:
    """The values as doubles, shape (values,). Values that are not finite are refused, never filtered."""
    found = np.asarray(values, dtype=np.float64)
    where = f"{metric} of {arm}"
    wrong = np.flatnonzero(~np.isfinite(found))
    if wrong.size:
        raise InvalidMeasurement(
            f"value {wrong[0]} is {found[wrong[0]]}",
            where=where,
            fix="check what happened there; nothing is filtered",
        )
    return found
