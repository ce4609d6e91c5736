"""Confirms the speed of a whole plan: beside the baseline, and beside itself without each of its choices.

All arms are new processes on new windows: a search keeps the luckiest of many choices, and luck seldom strikes twice.
The baseline runs a second time in another process: where equal arms differ, the plan must differ more. Where they
differ by more than processes of the same code do, the interval of the plan is widened by their farthest ratio.

A choice stays where the plan without it is slower with 80 % confidence, and by more than equal arms differ. The others
are removed and the rest is measured again, because two choices can replace each other. Choices that earn nothing stay
where the plan is proven with them and not without. Where there is no time to measure again, only the one that earns
least is removed: the plan without it was measured.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from hasten.facts.choice import Choice
from hasten.facts.plan import Speedup
from hasten.facts.trials import Confirmed, Earned, beside_noise, is_gain, is_proven
from hasten.measure.paired_timing import over_processes
from hasten.tuning.search.candidates import EVALUATION_ALONE, in_groups, plan_of, without
from hasten.tuning.search.comparison import Compared, ComparisonSettings, Entry, Watch, compare_arms
from hasten.tuning.search.objective import (
    Measured,
    RunLength,
    by_start,
    costs,
    interrupted_alike,
    is_likely_gain,
    pooled,
    speedup,
)
from hasten.tuning.trials.arms import Arms

PLAIN, AGAIN, WHOLE = "plain", "the baseline again", "the whole plan"


@dataclass(frozen=True, kw_only=True, slots=True)
class Confirmation:
    """confirmed: of the plan that is left, which may have no choice; comparison: its last one."""

    confirmed: Confirmed
    comparison: Compared


def confirm(
    arms: Arms,
    choices: Sequence[Choice],
    settings: ComparisonSettings,
    length: RunLength,
    watch: Watch,
    proven: Callable[[Confirmed], None],
    *,
    room: int,
    again: Callable[[Sequence[Choice]], ComparisonSettings | None] | None = None,
) -> Confirmation:
    """Confirm a plan, and remove what earns nothing until everything that is left earns. Raises ArmFailed when the
    baseline or the whole plan fails.

    proven: receives every plan that is beyond noise, so that an interruption loses none; room: arms that fit into
    memory beside each other; again: the settings of another comparison, of these choices, None where there is no time
    for it; without it, there is always time for the same settings.
    """
    measuring = _Measuring(arms=arms, length=length, watch=watch, room=room)
    while True:
        found = measuring.plan(choices, settings)
        idle = [earned.choice for earned in found.confirmed.earned if not earned.kept]
        left = without(choices, *idle)
        shorter = None if idle else found
        if len(idle) == 1:
            shorter = measuring.without_one(found, idle[0])
        if shorter is None and left:
            next_settings = again(left) if again is not None else settings
            if next_settings is not None:
                if len(idle) == 1:
                    _report(found, proven)
                choices, settings = left, next_settings
                continue
        if shorter is None and idle and left:
            shorter = measuring.without_one(found, _least(found.confirmed.earned))
        if shorter is not None and (is_proven(shorter.confirmed) or not is_proven(found.confirmed)):
            found = _with_all_kept(shorter)
        elif is_proven(found.confirmed):
            found = _with_all_kept(found)
        elif not left:
            found = measuring.nothing(found)
        _report(found, proven)
        return found


@dataclass(frozen=True, kw_only=True, slots=True)
class _Measuring:
    arms: Arms
    length: RunLength
    watch: Watch
    room: int

    def plan(self, choices: Sequence[Choice], settings: ComparisonSettings) -> Confirmation:
        """The plan beside the baseline, and without each of its choices."""
        controls = [Entry(name=name, plan=plan_of([])) for name in (PLAIN, AGAIN)]
        whole_plan = Entry(name=WHOLE, plan=plan_of(choices))
        shorter = {_without(choice): choice for choice in choices} if len(choices) > 1 else {}
        without_one = [
            Entry(name=name, plan=plan_of(without(choices, left)), same_steps=left.technique in EVALUATION_ALONE)
            for name, left in shorter.items()
        ]
        together = 1 + len(controls) + len(without_one) <= self.room
        comparison = self._compared(whole_plan, [*controls, *without_one] if together else controls, settings)
        for control in controls:
            if control.name in comparison.failed:
                raise comparison.failed[control.name]
        comparisons = [comparison]
        if not together:
            groups = in_groups(without_one, max(self.room - 1, 1))
            comparisons = [self._compared(whole_plan, group, settings) for group in groups]
        plain, again = comparison.measured[PLAIN], comparison.measured[AGAIN]
        noise, equal = speedup(plain, again, self.length), by_start(plain, again, self.length)
        earned = [
            self._earned(left, found, name, noise, equal)
            for found in comparisons
            for name, left in shorter.items()
            if name in found.measured or name in found.failed
        ]
        confirmed = self._confirmed(choices, comparison.base, comparison, noise, earned)
        return Confirmation(confirmed=confirmed, comparison=comparison)

    def without_one(self, found: Confirmation, removed: Choice) -> Confirmation | None:
        """The plan without a choice, as the same comparison has measured it; None where it has not."""
        name, comparison = _without(removed), found.comparison
        if name not in comparison.measured:
            return None
        kept = [earned for earned in found.confirmed.earned if earned.choice is not removed]
        choices = without(found.confirmed.choices, removed)
        if len(choices) != len(kept):
            return None
        confirmed = self._confirmed(choices, comparison.measured[name], comparison, found.confirmed.noise, kept)
        return Confirmation(confirmed=confirmed, comparison=comparison)

    def nothing(self, found: Confirmation) -> Confirmation:
        """The empty plan: the baseline in its second process."""
        comparison = found.comparison
        confirmed = self._confirmed((), comparison.measured[AGAIN], comparison, found.confirmed.noise, ())
        return Confirmation(confirmed=confirmed, comparison=comparison)

    def _compared(self, base: Entry, entries: Sequence[Entry], settings: ComparisonSettings) -> Compared:
        def report_pairs(done: int, whole: int, ratios: dict[str, float]) -> None:
            plain = ratios.get(PLAIN, 1.0)  # the plan is the base, so its ratio is 1
            others = {name: ratio / plain for name, ratio in ratios.items() if name != PLAIN}
            self.watch(done, whole, {WHOLE: 1 / plain} | others if ratios else {})

        settings = replace(settings, resident=len(entries) < self.room, checks=())
        return compare_arms(self.arms, base, entries, settings, self.length, report_pairs)

    def _confirmed(
        self,
        choices: Sequence[Choice],
        planned: Measured,
        comparison: Compared,
        noise: Speedup,
        earned: Sequence[Earned],
    ) -> Confirmed:
        length, plain, again = self.length, comparison.measured[PLAIN], comparison.measured[AGAIN]
        faster = noise
        if choices:
            starts, equal = by_start(plain, planned, length), by_start(plain, again, length)
            faster = beside_noise(over_processes(speedup(plain, planned, length), starts, equal), noise)
        if len(choices) == 1:
            earned = [Earned(choice=choices[0], speedup=faster, kept=is_gain(faster))]
        return Confirmed(
            choices=tuple(choices),
            speedup=faster,
            noise=noise,
            plain=pooled(costs(plain, length), costs(again, length)),
            planned=costs(interrupted_alike(plain, planned, length)[1], length),
            earned=tuple(earned),
        )

    def _earned(
        self, removed: Choice, comparison: Compared, name: str, noise: Speedup, equal: Sequence[float]
    ) -> Earned:
        """noise, equal: the ratio of equal arms, and in each start."""
        if name in comparison.failed:  # the plan needs the choice to run
            return Earned(choice=removed, speedup=Speedup(ratio=1, low=1, high=1, pairs=0), kept=True)
        shorter, base = comparison.measured[name], comparison.base
        found = over_processes(speedup(shorter, base, self.length), by_start(shorter, base, self.length), equal)
        return Earned(choice=removed, speedup=found, kept=is_likely_gain(found) and found.ratio >= _distance(noise))


def _least(earned: Sequence[Earned]) -> Choice:
    """The one that earns least of those that are not kept."""
    return min((each for each in earned if not each.kept), key=lambda each: each.speedup.ratio).choice


def _without(choice: Choice) -> str:
    return f"without {choice}"


def _distance(noise: Speedup) -> float:
    """How much equal arms differ, as a ratio; 1 where the difference is not significant."""
    return 1.0 if noise.low <= 1 <= noise.high else max(noise.ratio, 1 / noise.ratio)


def _report(found: Confirmation, proven: Callable[[Confirmed], None]) -> None:
    if is_proven(found.confirmed):
        proven(found.confirmed)


def _with_all_kept(found: Confirmation) -> Confirmation:
    """A proven plan whose idle choices stay, as without them nothing is proven."""
    earned = tuple(replace(each, kept=True) for each in found.confirmed.earned)
    return replace(found, confirmed=replace(found.confirmed, earned=earned))
