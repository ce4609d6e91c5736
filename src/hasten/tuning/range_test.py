"""Find a good learning rate by training briefly with one that grows from step to step until the loss diverges: where
the loss falls fastest, about a factor of ten below the limit of stability.

Source: Smith 2015, arXiv:1506.01186, section 3.3. A straight line fitted to the losses around each rate gives its
smoothed loss and its slope, and unlike a running average does not lag behind the rising rate."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median

import numpy as np

from hasten.errors import NonFinite
from hasten.facts.job import Job
from hasten.facts.machine import read_machine
from hasten.facts.plan import Plan
from hasten.measure.float64_reference import copy_of
from hasten.techniques.learning_rate import set_learning_rate
from hasten.training.probes.brief_run import undisturbed
from hasten.training.run import Run
from hasten.training.setup.prepared_job import device_of

FEWEST = 10  # losses from which a slope differs from noise
ROUNDING = 1e-6  # a fall by less than this share of the loss is float32's own
Watch = Callable[[int, int], object]
"""(done, whole)"""
_SETS_RATES = ("learning_rate", "schedule")


@dataclass(frozen=True, kw_only=True, slots=True)
class Suggestion:
    rate: float | None  # None when the test found none
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class RangeTest:
    """rates and losses have one length; the last loss may be NaN, which is why the test ended there."""

    rates: tuple[float, ...]
    losses: tuple[float, ...]
    suggestion: Suggestion


def range_test(
    job: Job,
    plan: Plan | None = None,
    *,
    lowest: float = 1e-6,
    highest: float = 10.0,
    steps: int = 100,
    watch: Watch = lambda done, whole: None,
) -> RangeTest:
    """Train a copy of the job's model for up to `steps` optimizer steps, the rate rising from `lowest` to `highest`.

    The rate is the first parameter group's; all others keep their ratio to it. The plan's choices apply, except those
    that set rates. The caller's model is not changed, and random states are restored. watch: receives the steps that
    are done, and all.

    Raises ValueError for an impossible range, and whatever training the job raises.
    """
    if not (0 < lowest < highest and math.isfinite(highest) and steps >= FEWEST):
        what = f"a test of {steps} steps from {lowest} to {highest}"
        raise ValueError(f"{what}: give 0 < lowest < highest, and {FEWEST} steps or more")
    rates, plan = np.geomspace(lowest, highest, steps).tolist(), plan or Plan()
    plan = replace(plan, choices=tuple(item for item in plan.choices if item.choice.technique not in _SETS_RATES))
    with undisturbed(device_of(job, read_machine())), Run(_trial_of(job, steps), plan) as run:
        losses = _losses_at(rates, run, watch)
    tried = rates[: len(losses)]
    return RangeTest(rates=tuple(tried), losses=tuple(losses), suggestion=suggest_rate(tried, losses))


def suggest_rate(rates: Sequence[float], losses: Sequence[float]) -> Suggestion:
    """The rate at which the loss falls fastest against the logarithm of the rate, up to where it is lowest.

    rates: positive and rising; losses: one for each. Those after training diverged are ignored. There is no suggestion
    without at least FEWEST losses before, or when the loss did not fall by more than its noise. Multiplying all losses
    by one positive number changes nothing.
    """
    end = divergence(losses)
    count = len(losses) if end is None else end
    if count < FEWEST:
        when = "the test was over" if end is None else f"training diverged at a rate of {rates[count]:.3g}"
        return Suggestion(rate=None, reason=f"only {count} losses before {when}; start lower or take more steps")
    seen = np.asarray(losses[:count], dtype=float)
    level, slope = _local_lines(np.log10(rates[:count]), seen, reach=max(2, count // 20))
    lowest = int(level.argmin())
    falling = slice(0, lowest + 1)
    fall, noise = float(level[falling].max() - level[lowest]), float(np.std(seen[falling] - level[falling]))
    if fall <= 3 * noise + ROUNDING * float(np.abs(seen[falling]).max()):
        return Suggestion(rate=None, reason=f"the loss fell by {fall:.3g}, which its noise of {noise:.3g} can explain")
    rate = float(rates[int(slope[falling].argmin())])
    reason = f"the loss falls fastest at {rate:.3g} and is lowest at {rates[lowest]:.3g}"
    if end is None and lowest == count - 1:
        reason += ", the highest rate that was tried: higher ones may be better"
    return Suggestion(rate=rate, reason=reason)


def divergence(losses: Sequence[float]) -> int | None:
    """The position of the first loss that is not finite, or from which on the median of three in a row has risen above
    the lowest one by three times the loss's own size; None when there is none."""
    best = math.inf
    for position, loss in enumerate(losses):
        if not math.isfinite(loss):
            return position
        middle = median(losses[max(0, position - 2) : position + 1])
        best = min(best, middle)
        if middle > best + 3 * max(abs(best), abs(losses[0])):
            return position
    return None


def _local_lines(x: np.ndarray, y: np.ndarray, reach: int) -> tuple[np.ndarray, np.ndarray]:
    """Value and slope, at each point, of the least-squares line through it and `reach` neighbours on each side."""
    near = [slice(max(0, middle - reach), middle + reach + 1) for middle in range(len(x))]
    lines = np.array([np.polyfit(x[each] - middle, y[each], 1) for each, middle in zip(near, x, strict=True)])
    return lines[:, 1], lines[:, 0]


def _losses_at(rates: Sequence[float], run: Run, watch: Watch) -> list[float]:
    """The loss of one optimizer step at each rate, up to a divergence."""
    losses: list[float] = []
    set_learning_rate(run.optimizers, rates[0])
    for batch in run.batches():
        try:
            run.step(batch)
        except NonFinite:
            losses.append(math.nan)
            break
        if not run.window_closed:
            continue
        losses += [window.mean for window in run.losses.drain()]
        watch(len(losses), len(rates))
        if len(losses) == len(rates) or divergence(losses) is not None:
            break
        set_learning_rate(run.optimizers, rates[len(losses)])
    return losses


def _trial_of(job: Job, steps: int) -> Job:
    """The job with only what a test needs. The model is copied: a job may return one that it uses elsewhere."""
    unjudged = replace(job, average=None, stop=None, keep=None, valid=None, metrics={}, evaluate_every=None)
    return replace(unjudged, model=lambda: copy_of(job.model()), schedule=None, epochs=None, max_steps=steps)
