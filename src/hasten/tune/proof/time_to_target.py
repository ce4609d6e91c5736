"""What pairs of runs from the same seeds say of the time to the target. Nothing here runs anything."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from hasten.facts.choice import Choice, Speedup
from hasten.facts.formatting import three_digits
from hasten.facts.trials import Reached
from hasten.measure.paired_timing import early_speedup
from hasten.tune.proof.course import Aim, Arrival
from hasten.tune.search.objective import WORTH_SEEING, is_gain


@dataclass(frozen=True, kw_only=True, slots=True)
class Pair:
    """before, after: of the runs without and with a choice; None for one that never came to the target."""

    seed: int
    target: float
    before: Arrival | None
    after: Arrival | None

    @property
    def whole(self) -> bool:
        return self.before is not None and self.after is not None

    @property
    def ratio(self) -> float:
        """How many times as soon it is with the choice. For whole pairs."""
        assert self.before is not None
        assert self.after is not None
        return self.before.seconds / self.after.seconds


def reached(choice: Choice, on: tuple[Choice, ...], aim: Aim, pairs: Sequence[Pair]) -> Reached:
    """The record of one choice beside the plan without it. It is kept when every pair is whole and it is surely sooner,
    which one pair never shows."""
    whole = all(pair.whole for pair in pairs)
    speedup = early_speedup([pair.ratio for pair in pairs]) if whole and len(pairs) > 1 else None
    return Reached(
        choice=choice,
        on=on,
        metric=aim.metric,
        higher_is_better=aim.higher_is_better,
        seeds=tuple(pair.seed for pair in pairs),
        targets=tuple(pair.target for pair in pairs),
        seconds_without=tuple(_seconds(pair.before) for pair in pairs),
        steps_without=tuple(_steps(pair.before) for pair in pairs),
        seconds_with=tuple(_seconds(pair.after) for pair in pairs),
        steps_with=tuple(_steps(pair.after) for pair in pairs),
        speedup=speedup,
        kept=speedup is not None and is_gain(speedup),
        sentence=_sentence(aim, pairs, speedup),
    )


def verdict(record: Reached) -> str:
    """Of a trial: "faster", "no difference" or "slower"."""
    if record.kept:
        return "faster"
    if None in record.seconds_with:
        return "slower"
    if record.speedup is not None:
        return "slower" if record.speedup.high < 1 / WORTH_SEEING else "no difference"
    before, after = record.seconds_without[-1], record.seconds_with[-1]
    return "slower" if before is not None and after is not None and after > before * WORTH_SEEING else "no difference"


def _sentence(aim: Aim, pairs: Sequence[Pair], speedup: Speedup | None) -> str:
    last = pairs[-1]
    target = f"{aim.metric} {last.target:.4g}"
    if last.after is None:
        return f"it never came to {target} from seed {last.seed}, where the plan without it ends"
    if last.before is None:
        return f"the plan without it never came to {target} from seed {last.seed}"
    if speedup is None:
        after, before = _told(last.after), _told(last.before)
        return f"it came to {target} after {after}, and the plan without it after {before}, from seed {last.seed} alone"
    with_it = [pair.after for pair in pairs if pair.after is not None]
    without = [pair.before for pair in pairs if pair.before is not None]
    return f"{speedup} to the job's own {aim.metric}: in {_middle(with_it)} instead of {_middle(without)} (medians)"


def _told(arrival: Arrival) -> str:
    return f"{three_digits(arrival.seconds)} s and {arrival.steps} steps"


def _middle(arrivals: Sequence[Arrival]) -> str:
    seconds, steps = median(each.seconds for each in arrivals), median(each.steps for each in arrivals)
    return f"{three_digits(seconds)} s and {steps:.0f} steps"


def _seconds(arrival: Arrival | None) -> float | None:
    return None if arrival is None else arrival.seconds


def _steps(arrival: Arrival | None) -> int | None:
    return None if arrival is None else arrival.steps
