"""Confirms the speed of a whole plan: beside the baseline, and beside itself without each of its choices.

All arms are new processes on new windows: a search keeps the luckiest of many choices, and luck seldom strikes twice.
The baseline runs a second time in another process: where equal arms differ, the plan must differ more. Where there is
time for several processes of each arm, the interval covers them (measure/processes.py).

A choice is worth what the plan loses without it. One that earns nothing beyond the difference of equal arms is removed,
and the rest is measured again, because two choices can replace each other. A doubtful choice only looked faster when it
was tried: it stays where the plan without it is slower with 80 % confidence. For two doubtful ones the plan without
both has an arm of its own. Where there is no time to measure again, the fastest measured plan is taken. Choices that
earn nothing stay where the plan is proven with them and not without.

A known bias: a plan without one choice, or without both doubtful ones, is quoted by the windows that it was compared
on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations

from hasten.facts.choice import Choice, Speedup
from hasten.facts.trials import Confirmed, Earned, is_proven
from hasten.measure.paired_timing import early_speedup, over_processes
from hasten.tune.search.candidates import EVALUATION_ALONE, in_groups, plan_of, without
from hasten.tune.search.compared_arm import Entry
from hasten.tune.search.comparison import (
    CHECKS,
    REPEATS_OF_A_CONTROL,
    Compared,
    ComparisonSettings,
    Watch,
    compare_arms,
)
from hasten.tune.search.objective import (
    WORTH_SEEING,
    Measured,
    RunLength,
    by_start,
    costs,
    is_gain,
    is_likely_gain,
    paired_totals,
    speedup,
)
from hasten.tune.trials.arms import Arms

PLAIN, AGAIN, WHOLE = "plain", "plain again", "whole plan"
FAR = 1.3  # a speed-up far beyond any difference of equal arms
Run = Callable[[Entry, Sequence[Entry]], Compared]
"""(base, entries beside it) -> the comparison of them"""


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
    doubtful: Sequence[Choice] = (),
    again: Callable[[Sequence[Choice]], ComparisonSettings | None] | None = None,
) -> Confirmation:
    """Confirm a plan, and remove what earns nothing until everything that is left earns. Raises ArmFailed when the
    baseline or the whole plan fails.

    doubtful: two of its choices at most; proven: receives every plan that is beyond noise, so that an interruption
    loses none; room: arms that fit into memory beside each other; again: the settings of another comparison, of these
    choices, None where there is no time for it; without it, there is always time for the same settings.
    """
    while True:
        run = partial(_run, arms, settings, length, watch, room)
        found = _measured(run, choices, doubtful, length, room)
        confirmed = found.confirmed
        idle = [earned.choice for earned in confirmed.earned if not earned.kept]
        if not confirmed.choices or not idle:
            return _reported(found, proven)
        left = without(choices, *idle)
        if (shorter := _with_measured(found, idle, length)) is not None:
            if is_proven(confirmed) and not is_proven(shorter.confirmed):
                return _with_all_kept(found, proven)
            return _reported(shorter, proven)
        if not left and is_proven(confirmed):  # each can go because of the other, and both cannot
            return _with_all_kept(found, proven)
        if not left:
            baseline = found.comparison.measured[AGAIN]
            nothing = _confirmed((), baseline, found.comparison, confirmed.noise, (), length)
            return Confirmation(confirmed=nothing, comparison=found.comparison)
        next_settings = again(left) if again is not None else settings
        if next_settings is None:
            return _fastest_measured(found, proven, doubtful, length)
        if len(idle) < 2:
            _reported(found, proven)
        choices, settings = left, next_settings


def is_earning(ratios: Sequence[float]) -> bool:
    """Whether the plan is significantly faster than without a choice, by the ratios of the plan without it."""
    return early_speedup(ratios).high < 1 / WORTH_SEEING


def is_far(ratios: Sequence[float]) -> bool:
    """Whether the plan is faster than another arm by far more than equal arms differ, by that arm's ratios. What
    choices earn is compared with that difference as well, so it needs some ratios."""
    return len(ratios) >= REPEATS_OF_A_CONTROL and early_speedup(ratios).high < 1 / FAR


def _run(
    arms: Arms,
    settings: ComparisonSettings,
    length: RunLength,
    watch: Watch,
    room: int,
    base: Entry,
    entries: Sequence[Entry],
) -> Compared:
    def report_pairs(done: int, whole: int, ratios: dict[str, float]) -> None:
        plain = ratios.get(PLAIN, 1.0)  # the plan is the base, so its ratio is 1
        others = {name: ratio / plain for name, ratio in ratios.items() if name != PLAIN}
        watch(done, whole, {WHOLE: 1 / plain} | others)

    checks = CHECKS if settings.starts == 1 else CHECKS[1:]  # windows of a single process settle nothing
    settings = replace(settings, resident=len(entries) < room, checks=checks, is_known=is_earning, control_repeats=None)
    return compare_arms(arms, base, entries, settings, length, report_pairs)


def _measured(
    run: Run, choices: Sequence[Choice], doubtful: Sequence[Choice], length: RunLength, room: int
) -> Confirmation:
    whole_plan = Entry(name=WHOLE, plan=plan_of(choices))
    plain, again = Entry(name=PLAIN, plan=plan_of([]), stays=True), Entry(name=AGAIN, plan=plan_of([]), is_known=is_far)
    controls = [plain, again]
    shorter = {_without(choice): choice for choice in choices} if len(choices) > 1 else {}
    without_some = [_shorter(choices, [left], stays=_is_in(doubtful, left)) for left in shorter.values()]
    pairs = [pair for pair in combinations(choices, 2) if all(_is_in(doubtful, choice) for choice in pair)]
    without_both = [_shorter(choices, pair, stays=True) for pair in pairs if len(choices) > len(pair)]
    together = 1 + len(controls) + len(without_some) + len(without_both) <= room
    without_some += without_both if together else []
    comparison = run(whole_plan, [*controls, *without_some] if together else controls)
    for control in controls:
        if control.name in comparison.failed:
            raise comparison.failed[control.name]
    noise = _noise(comparison, length)
    comparisons = (
        [comparison] if together else [run(whole_plan, group) for group in in_groups(without_some, max(room - 1, 1))]
    )
    earned = [
        _earned(left, found, name, _distance(noise), length, doubtful=_is_in(doubtful, left))
        for found in comparisons
        for name, left in shorter.items()
        if name in found.measured or name in found.failed
    ]
    confirmed = _confirmed(choices, comparison.base, comparison, noise, earned, length)
    return Confirmation(confirmed=confirmed, comparison=comparison)


def _confirmed(
    choices: Sequence[Choice],
    planned: Measured,
    comparison: Compared,
    noise: Speedup,
    earned: Sequence[Earned],
    length: RunLength,
) -> Confirmed:
    plain, again = comparison.measured[PLAIN], comparison.measured[AGAIN]
    faster = noise
    if choices:
        starts, equal = by_start(plain, planned, length), by_start(plain, again, length)
        faster = over_processes(speedup(plain, planned, length), starts, equal)
    if len(choices) == 1:
        earned = [Earned(choice=choices[0], speedup=faster, kept=is_gain(faster))]
    return Confirmed(
        choices=tuple(choices),
        speedup=faster,
        noise=noise,
        plain=costs(plain, length),
        planned=costs(planned, length),
        earned=tuple(earned),
    )


def _without(*choices: Choice) -> str:
    return f"without {' and '.join(map(str, choices))}"


def _shorter(choices: Sequence[Choice], removed: Sequence[Choice], *, stays: bool) -> Entry:
    """The plan without some of its choices."""
    same_steps = all(choice.technique in EVALUATION_ALONE for choice in removed)
    plan = plan_of(without(choices, *removed))
    return Entry(name=_without(*removed), plan=plan, stays=stays, same_steps=same_steps)


def _is_in(choices: Sequence[Choice], one: Choice) -> bool:
    return any(one is choice for choice in choices)


def _earned(
    removed: Choice, comparison: Compared, name: str, noise: float, length: RunLength, *, doubtful: bool
) -> Earned:
    if name in comparison.failed:  # the plan needs the choice to run, or the arm had bad luck
        return Earned(choice=removed, speedup=Speedup(ratio=1, low=1, high=1, pairs=0), kept=not doubtful)
    if name in comparison.early:
        found = early_speedup([1 / ratio for ratio in comparison.early[name]])
    else:
        found = speedup(comparison.measured[name], comparison.base, length)
    kept = found.ratio >= max(WORTH_SEEING, noise) and (is_likely_gain(found) or not doubtful)
    return Earned(choice=removed, speedup=found, kept=kept)


def _noise(comparison: Compared, length: RunLength) -> Speedup:
    """How many times as fast the baseline is in its second process."""
    plain, again = comparison.measured[PLAIN], comparison.measured[AGAIN]
    if AGAIN not in comparison.early:
        return speedup(plain, again, length)
    beside = replace(plain, windows=plain.windows[: len(again.windows)])
    pairs = zip(*paired_totals(beside, again, length), strict=True)
    return early_speedup([before.seconds / after.seconds for before, after in pairs])


def _distance(noise: Speedup) -> float:
    """How much equal arms differ, as a ratio; 1 where the difference is not significant."""
    return 1.0 if noise.low <= 1 <= noise.high else max(noise.ratio, 1 / noise.ratio)


def _reported(found: Confirmation, proven: Callable[[Confirmed], None]) -> Confirmation:
    if is_proven(found.confirmed):
        proven(found.confirmed)
    return found


def _with_all_kept(found: Confirmation, proven: Callable[[Confirmed], None]) -> Confirmation:
    """A proven plan whose idle choices stay, as without them nothing is proven."""
    earned = tuple(replace(each, kept=True) for each in found.confirmed.earned)
    return _reported(replace(found, confirmed=replace(found.confirmed, earned=earned)), proven)


def _fastest_measured(
    found: Confirmation, proven: Callable[[Confirmed], None], doubtful: Sequence[Choice], length: RunLength
) -> Confirmation:
    """Of the plan and those without an idle choice, or without both doubtful ones, that were measured beside it: the
    fastest that is proven, the plan itself where none of the shorter ones is."""
    idle = [earned.choice for earned in found.confirmed.earned if not earned.kept]
    some = [[choice] for choice in idle]
    some += [[*doubtful]] if len(doubtful) > 1 and all(_is_in(idle, choice) for choice in doubtful) else []
    shorter = [each for removed in some if (each := _with_measured(found, removed, length)) is not None]
    best = max(
        (each for each in shorter if is_proven(each.confirmed)),
        key=lambda each: each.confirmed.speedup.ratio,
        default=found,
    )
    return _with_all_kept(best, proven) if is_proven(best.confirmed) else found


def _with_measured(found: Confirmation, idle: Sequence[Choice], length: RunLength) -> Confirmation | None:
    """The plan without its idle choices, as the same comparison has measured it; None where it has not, to the end."""
    name, comparison = _without(*idle), found.comparison
    if name not in comparison.measured or name in comparison.early:
        return None
    kept = [earned for earned in found.confirmed.earned if not _is_in(idle, earned.choice)]
    choices = without(found.confirmed.choices, *idle)
    if len(choices) != len(kept):
        return None
    confirmed = _confirmed(choices, comparison.measured[name], comparison, found.confirmed.noise, kept, length)
    return Confirmation(confirmed=confirmed, comparison=comparison)
