"""What a plan is judged by: the seconds until the planned run has ended, with everything that is paid once.

    total = process + one-off + steps × (step + interruption) + (epochs - 1) × turn + evaluations × evaluation

A script evaluates and saves where it likes: what it does between two steps of an epoch is an interruption, with its
share of every step by how often it was seen. Two plans are compared by interruptions of the same steps, one of them in
each total, so that their spread is in the interval; where there are few, by those of one plan.

Each window of steps gives one total, so totals are compared like windows: in pairs that ran next to each other. What is
paid once was measured once: a difference in it that starting a process can make by itself does not count.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median, median_low, quantiles

from hasten.facts.plan import Between, Speedup
from hasten.facts.trials import LEAST_GAIN, Costs, Tried
from hasten.measure.paired_timing import Window, compare

WORTH_SEEING = LEAST_GAIN
OF_THE_INTERVAL = 1.2816 / 1.96  # an 80 % interval as a part of a 95 % one, of a normal distribution
LOOKS_FASTER = 1.02  # a measured ratio, not significant, from which a choice is measured once more
MUCH_SHORTER = 2 / 3  # of the planned run: what made no difference to it before can make one now
LONG_TURN_SECONDS = 1.0
# By which the starts of one arm are assumed to differ: seconds, share of itself, and the most of both.
FEWEST_INTERRUPTIONS = 4  # by which two plans are compared
ONE_OFF_NOISE_SECONDS, ONE_OFF_NOISE_SHARE, ONE_OFF_NOISE_MOST = 0.1, 0.25, 0.5


@dataclass(frozen=True, slots=True)
class Interruptions:
    """seconds: of each, in the order of the steps. among: so many steps of the run."""

    seconds: Sequence[float] = ()
    among: float = 0.0

    @property
    def of_a_step(self) -> float:
        return math.fsum(self.seconds) / self.among if self.seconds else 0.0

    @property
    def evened(self) -> Interruptions:
        """As often, each with the mean of all."""
        count = len(self.seconds)
        return replace(self, seconds=(math.fsum(self.seconds) / count,) * count) if count else self

    def of_a_step_by(self, position: int) -> float:
        """If all were like one of them."""
        return self.seconds[position % len(self.seconds)] * len(self.seconds) / self.among if self.seconds else 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class RunLength:
    """Of the planned run: optimizer steps, epochs (1 where the data has none), and evaluations.

    evaluation_seconds, turn_seconds: of one, for arms whose own were not measured. process_seconds: of the process
    around its training, whatever the plan. ends_with_turn: what is done between two epochs is done after the last one,
    too. interruptions: that the profile of the baseline has met, for arms that have met few."""

    steps: int
    epochs: int
    evaluations: int
    evaluation_seconds: float = 0.0
    turn_seconds: float = 0.0
    process_seconds: float = 0.0
    ends_with_turn: bool = False
    interruptions: Interruptions = Interruptions()

    @property
    def turns(self) -> int:
        return self.epochs if self.ends_with_turn else self.epochs - 1

    @property
    def has_long_turns(self) -> bool:
        """So long that a trial measures them only of a choice that is for turns (bounds.py). The confirmation measures
        them in every arm. What another choice gains between two epochs alone is missed."""
        return self.turns > 0 and self.turn_seconds > LONG_TURN_SECONDS


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """Measurements of one arm; seconds. one_off: all before its second step, beyond what steps take."""

    windows: tuple[Window, ...]
    one_off: float
    turns: tuple[float, ...] = ()
    interruptions: Interruptions = Interruptions()
    evaluations: tuple[float, ...] = ()
    peak_bytes: int = 0


def totals(arm: Measured, length: RunLength) -> list[Window]:
    """The seconds of the whole planned run, by each window, as windows of one step."""
    fixed = length.process_seconds + arm.one_off + length.turns * _turn(arm, length)
    evaluations = arm.evaluations or (length.evaluation_seconds,)
    found: list[Window] = []
    for position, window in enumerate(arm.windows):
        evaluation = evaluations[position % len(evaluations)]
        step = window.seconds_per_step + arm.interruptions.of_a_step_by(position)
        seconds = fixed + length.steps * step + length.evaluations * evaluation
        found.append(Window(arm=window.arm, steps=1, seconds=seconds, start=window.start))
    return found


def costs(arm: Measured, length: RunLength) -> Costs:
    """A whole run has slow and fast minutes, so its seconds follow from a mean; a median would leave out one of them.
    The tenth of the windows at either end is not in it, as a single pause would outweigh all others."""
    arm = replace(arm, interruptions=_enough(arm.interruptions, length).evened)
    found = [window.seconds for window in totals(arm, length)]
    total = _middle_mean(found)
    return Costs(
        one_off=length.process_seconds + arm.one_off,
        step=_middle_mean([window.seconds_per_step for window in arm.windows]),
        turn=_turn(arm, length),
        interruptions=length.steps * arm.interruptions.of_a_step,
        evaluation=median(arm.evaluations or (length.evaluation_seconds,)),
        total=total,
        peak_bytes=arm.peak_bytes,
        windows=len(found),
        between=_between(found, total),
    )


def pooled(later: Costs, earlier: Costs | None) -> Costs:
    """The later costs of the same arm, with the step and the total over the windows of both: a machine has slow and
    fast minutes, and a long run meets them all."""
    if earlier is None:
        return later
    windows = later.windows + earlier.windows
    share = later.windows / windows if windows else 1.0
    step, total = (share * getattr(later, name) + (1 - share) * getattr(earlier, name) for name in ("step", "total"))
    known = [each.between for each in (later, earlier) if each.between is not None]
    ends = [total, *(each.low for each in known), *(each.high for each in known)]
    between = Between(low=min(ends), high=max(ends)) if known else None
    return replace(later, step=step, total=total, windows=windows, between=between)


def speedup(base: Measured, planned: Measured, length: RunLength) -> Speedup:
    """How many times sooner the planned run ends. Raises InvalidMeasurement as measure.paired.compare does."""
    before, after = paired_totals(base, planned, length)
    windows = [replace(window, start=0) for pair in zip(before, after, strict=True) for window in pair]
    return compare(windows, baseline=before[0].arm, challenger=after[0].arm).speedup


def by_start(base: Measured, planned: Measured, length: RunLength) -> list[float]:
    """The speed-up by the windows of each start alone, of starts that both arms were in."""
    ratios = dict[int, list[float]]()
    for before, after in zip(*paired_totals(base, planned, length), strict=False):
        ratios.setdefault(before.start, []).append(before.seconds / after.seconds)
    return [median(each) for each in ratios.values()]


def least_visible(tried: Sequence[Tried]) -> float | None:
    """The smallest gain that half of the trials could have shown, by the wider half of each interval; None where
    nothing was measured."""
    found = [each.speedup for each in tried if each.speedup is not None and each.speedup.low > 0]
    return median_low([max(each.ratio / each.low, each.high / each.ratio) for each in found]) if found else None


def looks_faster(tried: Tried) -> bool:
    """Whether it may be a gain that was not significant."""
    return tried.verdict == "no difference" and tried.speedup is not None and tried.speedup.ratio >= LOOKS_FASTER


def is_likely_gain(found: Speedup) -> bool:
    """As is_gain, but with 80 % confidence where that has 95 %: enough for a choice that is measured twice, for one
    that does nothing would have to be lucky twice."""
    low = math.log(found.ratio) - OF_THE_INTERVAL * (math.log(found.ratio) - math.log(found.low))
    return low > 0 and found.ratio >= WORTH_SEEING


def shows_now(tried: Tried, seconds: float) -> bool:
    """Whether what made no difference would make one to a planned run that has become this short, if it saves as much
    as it seemed to."""
    if tried.speedup is None or tried.costs is None or tried.verdict != "no difference":
        return False
    before = tried.costs.total * tried.speedup.ratio
    saved = before - tried.costs.total
    return seconds < before * MUCH_SHORTER and (saved >= seconds or seconds / (seconds - saved) >= WORTH_SEEING)


def paired_totals(base: Measured, planned: Measured, length: RunLength) -> tuple[list[Window], list[Window]]:
    """The totals of two arms, with equal one-off costs where the difference is no more than noise, with turns that were
    measured of both or of neither, and with interruptions of the same steps."""
    noise = min(ONE_OFF_NOISE_SECONDS + ONE_OFF_NOISE_SHARE * base.one_off, ONE_OFF_NOISE_MOST)
    if abs(planned.one_off - base.one_off) < noise:
        planned = replace(planned, one_off=base.one_off)
    if not (base.turns and planned.turns):
        base, planned = replace(base, turns=()), replace(planned, turns=())
    base, planned = interrupted_alike(base, planned, length)
    return totals(base, length), totals(planned, length)


def _enough(met: Interruptions, length: RunLength) -> Interruptions:
    """Those of an arm; where these are few and the profile has met some, those of the profile."""
    few = len(met.seconds) < FEWEST_INTERRUPTIONS
    return length.interruptions if few and length.interruptions.seconds else met


def interrupted_alike(base: Measured, planned: Measured, length: RunLength) -> tuple[Measured, Measured]:
    """With the interruptions that both have seen, as often as the base was interrupted: one arm may have taken a few
    steps more. Where these are few, both with the same ones."""
    of_base, own = base.interruptions, planned.interruptions
    both = min(len(of_base.seconds), len(own.seconds))
    if both < FEWEST_INTERRUPTIONS:
        same = _enough(of_base, length).evened
        return replace(base, interruptions=same), replace(planned, interruptions=same)
    among = of_base.among * both / len(of_base.seconds)
    before, after = (Interruptions(each.seconds[:both], among) for each in (of_base, own))
    return replace(base, interruptions=before), replace(planned, interruptions=after)


def break_even_step(baseline: Costs, planned: Costs) -> int | None:
    """The first step after which the plan has saved what it costs once; 0 where it costs nothing more, None where it
    never does."""
    extra, saved = planned.one_off - baseline.one_off, baseline.step - planned.step
    if extra <= 0:
        return 0
    return math.ceil(extra / saved) if saved > 0 else None


def one_off(build_seconds: float, first_turn: float | None, warm_up: Window, step_seconds: float) -> float:
    """Building, the first batch, and what the first steps took beyond their own time (compiling, autotuning, the
    optimizer's state)."""
    beyond = warm_up.seconds - warm_up.steps * step_seconds
    return build_seconds + (first_turn or 0.0) + max(beyond, 0.0)


def _between(found: Sequence[float], total: float) -> Between | None:
    """At least eight of ten are within it, and their total is; all, where there are fewer than nine. None of a single
    one."""
    if len(found) < 2:
        return None
    tenths = quantiles(found, n=10)
    return Between(low=min(max(tenths[0], min(found)), total), high=max(min(tenths[-1], max(found)), total))


def _middle_mean(values: Sequence[float]) -> float:
    """Without a tenth of them at either end, rounded down."""
    left = len(values) // 10
    return fmean(sorted(values)[left : len(values) - left])


def _turn(arm: Measured, length: RunLength) -> float:
    return median(arm.turns or (length.turn_seconds,))
