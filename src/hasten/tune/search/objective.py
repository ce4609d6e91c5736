"""What a plan is judged by: the seconds that the planned run takes to its end, all that is paid once included.

    total = process + one-off + steps × step + (epochs - 1) × turn + evaluations × evaluation

A choice that makes steps faster and starts slowly is worth it from some step on, and not before: the break-even step.
So a technique is never judged by its steps alone, and the same choice can win in a long run and lose in a short one.

Each window of steps gives one total of its own, with the arm's other costs as they are, so totals are compared as
windows are: in pairs that ran next to each other. The evaluations of an arm are shared out among its windows, so that
their spread is in the totals as well. What is paid once was measured once, and nobody knows its spread: a difference
in it that starting a process can make by itself counts for none.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median, quantiles

from hasten.facts.choice import Speedup
from hasten.facts.plan import Between
from hasten.facts.trials import LEAST_GAIN, Costs, Tried
from hasten.measure.paired_timing import Window, compare

WORTH_SEEING = LEAST_GAIN
OF_THE_INTERVAL = 1.2816 / 1.96  # an 80 % interval as a part of a 95 % one, of what is spread normally
LOOKS_FASTER = 1.02  # what looks to be worth so much, and is not sure, is worth asking once more
MUCH_SHORTER = 2 / 3  # of the planned run: what made no difference to it before can make one now
LONGEST_SECONDS = 1e12  # of any run; what is longer is a mistake
# By which the start of the same arm is taken to differ from one time to the next: seconds, share of itself, and the
# most of both.
ONE_OFF_NOISE_SECONDS, ONE_OFF_NOISE_SHARE, ONE_OFF_NOISE_MOST = 0.1, 0.25, 0.5


@dataclass(frozen=True, kw_only=True, slots=True)
class Length:
    """Of the planned run: optimizer steps, epochs (1 where the data has none), and evaluations.

    evaluation_seconds: of one, for an arm whose own were not measured: it is then taken to be no faster there.
    process_seconds: of the process around its training, whatever the plan."""

    steps: int
    epochs: int
    evaluations: int
    evaluation_seconds: float = 0.0
    process_seconds: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Seen:
    """What was seen of one arm; seconds. one_off: all before its second step, above what steps take."""

    windows: tuple[Window, ...]
    one_off: float
    turns: tuple[float, ...] = ()
    evaluations: tuple[float, ...] = ()
    peak_bytes: int = 0


def totals(seen: Seen, length: Length) -> list[Window]:
    """The seconds of the whole planned run, by each window, as windows of one step that can be compared."""
    fixed = length.process_seconds + seen.one_off + (length.epochs - 1) * _median(seen.turns)
    evaluations = seen.evaluations or (length.evaluation_seconds,)
    found: list[Window] = []
    for position, window in enumerate(seen.windows):
        evaluation = evaluations[position % len(evaluations)]
        seconds = fixed + length.steps * window.seconds_per_step + length.evaluations * evaluation
        found.append(Window(arm=window.arm, steps=1, seconds=seconds, start=window.start))
    return found


def costs(seen: Seen, length: Length) -> Costs:
    found = [window.seconds for window in totals(seen, length)]
    return Costs(
        one_off=length.process_seconds + seen.one_off,
        step=_median([window.seconds_per_step for window in seen.windows]),
        turn=_median(seen.turns),
        evaluation=_median(seen.evaluations or (length.evaluation_seconds,)),
        total=_median(found),
        peak_bytes=seen.peak_bytes,
        between=_between(found),
    )


def spread_over(later: Costs, earlier: Costs | None) -> Costs:
    """The later costs of the same arm, with the spread that it had both times: a machine may be another one by then.

    Of an earlier one that a file states, what no spread can be is left out."""
    given = [each.between for each in (later, earlier) if each is not None and each.between is not None]
    known = [each for each in given if 0 <= each.low <= each.high < LONGEST_SECONDS]
    low = min([later.total, *(each.low for each in known)])
    high = max([later.total, *(each.high for each in known)])
    return replace(later, between=Between(low=low, high=high) if known else None)


def speedup(plain: Seen, planned: Seen, length: Length) -> Speedup:
    """How many times sooner the planned run ends. Raises InvalidMeasurement as measure.paired.compare does."""
    before, after = paired_totals(plain, planned, length)
    windows = [replace(window, start=0) for pair in zip(before, after, strict=True) for window in pair]
    return compare(windows, baseline=before[0].arm, challenger=after[0].arm).speedup


def by_start(plain: Seen, planned: Seen, length: Length) -> list[float]:
    """What speedup() says, of the windows of each start alone; of starts that both arms were in."""
    ratios = dict[int, list[float]]()
    for before, after in zip(*paired_totals(plain, planned, length), strict=False):
        ratios.setdefault(before.start, []).append(before.seconds / after.seconds)
    return [median(each) for each in ratios.values()]


def is_gain(found: Speedup) -> bool:
    """Whether it is both sure to be faster and worth it."""
    return found.low > 1 and found.ratio >= WORTH_SEEING


def looks_faster(tried: Tried) -> bool:
    """Whether it may be a gain that was not seen surely."""
    return tried.verdict == "no difference" and tried.speedup is not None and tried.speedup.ratio >= LOOKS_FASTER


def is_likely_gain(found: Speedup) -> bool:
    """Whether it is both likely to be faster and worth it: with 80 %, where is_gain has 95 %.

    Enough for who is asked twice: what does nothing has to be lucky twice then."""
    low = math.log(found.ratio) - OF_THE_INTERVAL * (math.log(found.ratio) - math.log(found.low))
    return low > 0 and found.ratio >= WORTH_SEEING


def shows_now(tried: Tried, seconds: float) -> bool:
    """Whether what made no difference would make one to a planned run that has become so short, in seconds, if it saves
    as much as it seemed to."""
    if tried.speedup is None or tried.costs is None or tried.verdict != "no difference":
        return False
    before = tried.costs.total * tried.speedup.ratio
    saved = before - tried.costs.total
    return seconds < before * MUCH_SHORTER and (saved >= seconds or seconds / (seconds - saved) >= WORTH_SEEING)


def paired_totals(plain: Seen, planned: Seen, length: Length) -> tuple[list[Window], list[Window]]:
    """The totals of two arms, alike in what is paid once where the difference is no more than noise."""
    noise = min(ONE_OFF_NOISE_SECONDS + ONE_OFF_NOISE_SHARE * plain.one_off, ONE_OFF_NOISE_MOST)
    if abs(planned.one_off - plain.one_off) < noise:
        planned = replace(planned, one_off=plain.one_off)
    return totals(plain, length), totals(planned, length)


def break_even_step(plain: Costs, planned: Costs) -> int | None:
    """The first step after which the plan has saved what it costs once; 0 where it costs nothing more, None where it
    never does."""
    extra, saved = planned.one_off - plain.one_off, plain.step - planned.step
    if extra <= 0:
        return 0
    return math.ceil(extra / saved) if saved > 0 else None


def one_off(build_seconds: float, first_turn: float | None, warm_up: Window, step_seconds: float) -> float:
    """What was paid before the steps run as they will: building, the first batch, and what the first steps took beyond
    their own time (compiling, autotuning, the optimizer's state)."""
    beyond = warm_up.seconds - warm_up.steps * step_seconds
    return build_seconds + (first_turn or 0.0) + max(beyond, 0.0)


def _between(found: Sequence[float]) -> Between | None:
    """Eight of ten at least lie within; all, where there are fewer than nine. None of a single one."""
    if len(found) < 2:
        return None
    tenths = quantiles(found, n=10)
    return Between(low=max(tenths[0], min(found)), high=min(tenths[-1], max(found)))


def _median(values: Sequence[float]) -> float:
    return median(values) if values else 0.0
