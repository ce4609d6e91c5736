"""The proof of a whole plan's speed: beside the untouched job, and beside itself without each of its choices.

The plan is the base of these heats, so all that is asked of it is asked beside the same windows. All arms are new
processes on windows of their own: a search looks at many choices and keeps the luckiest, and here luck has to come
twice. A plan whose interval reaches down to 1 is no plan; and the plain job runs once more in a second process: where
equal arms lie apart, the plan must lie farther. Where it surely lies much farther than they ever do, that process
leaves early. Where there is time for several processes of each arm, the interval holds beyond them
(measure/processes.py); else it is one of these processes.

What a choice is worth is what the plan loses without it. Each was faster beyond noise when it joined, so what is asked
here is whether that is still there: one without which the plan is as fast, or faster, or no farther off than equal arms
are from each other, earns nothing and goes. An arm without a choice that surely earns leaves before the last round. Of
a choice that stays the interval says how sure this second answer alone would be. A doubtful choice only looked faster
before. Here nobody looks at it until all windows are there, and it stays where the plan without it is slower with 80 %
at least: what does nothing would have to be lucky twice.

When several go, the rest is measured again, as two choices can stand in for each other: either alone can go, and both
together not. Of two doubtful ones that is expected, so beside others the plan without both has an arm of its own. Where
there is no time for that, the fastest plan of those that were measured is taken. What is idle stays where the plan is
proven and without it is not.

What was given up: where one choice goes, or both doubtful ones do, the plan without them is quoted by the windows that
it was compared on, which favours it by a part of their noise. Where not all arms fit into memory beside each other,
choices are left out in heats of their own, beside the whole plan.
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
from hasten.tune.search.comparison import LOOKS, ROUNDS_OF_A_CONTROL, Outcome, Pace, Watch, run_heat
from hasten.tune.search.objective import (
    WORTH_SEEING,
    Length,
    Seen,
    by_start,
    costs,
    is_gain,
    is_likely_gain,
    paired_totals,
    speedup,
)
from hasten.tune.trials.arms import Arms

PLAIN, AGAIN, WHOLE = "plain", "plain again", "whole plan"
FAR = 1.3  # a speed-up beside which it is no question how far equal arms lie apart
Run = Callable[[Entry, Sequence[Entry]], Outcome]
"""(base, entries beside it) -> what a heat of them gave"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Final:
    """confirmed: of the plan that is left, which may have no choice; outcome: of its last heat."""

    confirmed: Confirmed
    outcome: Outcome


def confirm(
    arms: Arms,
    choices: Sequence[Choice],
    pace: Pace,
    length: Length,
    watch: Watch,
    proven: Callable[[Confirmed], None],
    *,
    room: int,
    doubtful: Sequence[Choice] = (),
    again: Callable[[Sequence[Choice]], Pace | None] | None = None,
) -> Final:
    """Confirm a plan, and take out what earns nothing until all that is left earns. Raises ArmFailed when the plain job
    or the whole plan fails.

    doubtful: two of its choices at most; proven: is told every plan that is beyond noise, so that an interruption loses
    none; room: arms that fit into memory beside each other; again: the pace of another heat, of these choices, None
    where there is no time for it; without it, there is always time for the same pace.
    """
    while True:
        found = _measured(partial(_run, arms, pace, length, watch, room), choices, doubtful, length, room)
        confirmed = found.confirmed
        idle = [earned.choice for earned in confirmed.earned if not earned.kept]
        if not confirmed.choices or not idle:
            return _told(found, proven)
        left = without(choices, *idle)
        if (shorter := _with_measured(found, idle, length)) is not None:
            if is_proven(confirmed) and not is_proven(shorter.confirmed):
                return _with_all_kept(found, proven)
            return _told(shorter, proven)
        if not left and is_proven(confirmed):  # each can go for the other's sake, and both cannot
            return _with_all_kept(found, proven)
        if not left:
            again_plain = found.outcome.seen[AGAIN]
            nothing = _confirmed((), again_plain, found.outcome, confirmed.noise, (), length)
            return Final(confirmed=nothing, outcome=found.outcome)
        next_pace = again(left) if again is not None else pace
        if next_pace is None:
            return _fastest_measured(found, proven, doubtful, length)
        if len(idle) < 2:
            _told(found, proven)
        choices, pace = left, next_pace


def is_earning(ratios: Sequence[float]) -> bool:
    """Whether the plan is surely faster than without a choice, by the ratios of the plan without it."""
    return early_speedup(ratios).high < 1 / WORTH_SEEING


def is_far(ratios: Sequence[float]) -> bool:
    """Whether the plan is surely faster than another arm by more than equal arms differ, by the ratios of that.

    What its choices earn is held against that difference as well, so there have to be some."""
    return len(ratios) >= ROUNDS_OF_A_CONTROL and early_speedup(ratios).high < 1 / FAR


def _run(
    arms: Arms, pace: Pace, length: Length, watch: Watch, room: int, base: Entry, entries: Sequence[Entry]
) -> Outcome:
    def watched(done: int, whole: int, ratios: dict[str, float]) -> None:
        plain = ratios.get(PLAIN, 1.0)  # how fast the plan is in these is 1
        watch(
            done, whole, {WHOLE: 1 / plain} | {name: ratio / plain for name, ratio in ratios.items() if name != PLAIN}
        )

    looks = LOOKS if pace.starts == 1 else LOOKS[1:]  # no windows of a single process settle anything
    pace = replace(pace, resident=len(entries) < room, looks=looks, known=is_earning, control_rounds=None)
    return run_heat(arms, base, entries, pace, length, watched)


def _measured(run: Run, choices: Sequence[Choice], doubtful: Sequence[Choice], length: Length, room: int) -> Final:
    whole_plan = Entry(name=WHOLE, plan=plan_of(choices))
    plain, again = Entry(name=PLAIN, plan=plan_of([]), stays=True), Entry(name=AGAIN, plan=plan_of([]), known=is_far)
    controls = [plain, again]
    shorter = {_without(choice): choice for choice in choices} if len(choices) > 1 else {}
    without_some = [_shorter(choices, [left], stays=_is_in(doubtful, left)) for left in shorter.values()]
    pairs = [pair for pair in combinations(choices, 2) if all(_is_in(doubtful, choice) for choice in pair)]
    without_both = [_shorter(choices, pair, stays=True) for pair in pairs if len(choices) > len(pair)]
    together = 1 + len(controls) + len(without_some) + len(without_both) <= room
    without_some += without_both if together else []
    outcome = run(whole_plan, [*controls, *without_some] if together else controls)
    for control in controls:
        if control.name in outcome.failed:
            raise outcome.failed[control.name]
    noise = _noise(outcome, length)
    outcomes = (
        [outcome] if together else [run(whole_plan, group) for group in in_groups(without_some, max(room - 1, 1))]
    )
    earned = [
        _earned(left, found, name, _distance(noise), length, doubtful=_is_in(doubtful, left))
        for found in outcomes
        for name, left in shorter.items()
        if name in found.seen or name in found.failed
    ]
    confirmed = _confirmed(choices, outcome.base, outcome, noise, earned, length)
    return Final(confirmed=confirmed, outcome=outcome)


def _confirmed(
    choices: Sequence[Choice],
    planned: Seen,
    outcome: Outcome,
    noise: Speedup,
    earned: Sequence[Earned],
    length: Length,
) -> Confirmed:
    plain, again = outcome.seen[PLAIN], outcome.seen[AGAIN]
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


def _shorter(choices: Sequence[Choice], left: Sequence[Choice], *, stays: bool) -> Entry:
    """The plan without some of its choices."""
    same_steps = all(choice.technique in EVALUATION_ALONE for choice in left)
    return Entry(name=_without(*left), plan=plan_of(without(choices, *left)), stays=stays, same_steps=same_steps)


def _is_in(choices: Sequence[Choice], one: Choice) -> bool:
    return any(one is choice for choice in choices)


def _earned(left: Choice, outcome: Outcome, name: str, noise: float, length: Length, *, doubtful: bool) -> Earned:
    if name in outcome.failed:  # the plan needs the choice to run, or the arm had bad luck
        return Earned(choice=left, speedup=Speedup(ratio=1, low=1, high=1, pairs=0), kept=not doubtful)
    if name in outcome.early:
        found = early_speedup([1 / ratio for ratio in outcome.early[name]])
    else:
        found = speedup(outcome.seen[name], outcome.base, length)
    kept = found.ratio >= max(WORTH_SEEING, noise) and (is_likely_gain(found) or not doubtful)
    return Earned(choice=left, speedup=found, kept=kept)


def _noise(outcome: Outcome, length: Length) -> Speedup:
    """How many times as fast as the plain job it is in its second process."""
    plain, again = outcome.seen[PLAIN], outcome.seen[AGAIN]
    if AGAIN not in outcome.early:
        return speedup(plain, again, length)
    beside = replace(plain, windows=plain.windows[: len(again.windows)])
    pairs = zip(*paired_totals(beside, again, length), strict=True)
    return early_speedup([before.seconds / after.seconds for before, after in pairs])


def _distance(noise: Speedup) -> float:
    """How far equal arms lie apart, as a ratio; 1 where they need not."""
    return 1.0 if noise.low <= 1 <= noise.high else max(noise.ratio, 1 / noise.ratio)


def _told(found: Final, proven: Callable[[Confirmed], None]) -> Final:
    if is_proven(found.confirmed):
        proven(found.confirmed)
    return found


def _with_all_kept(found: Final, proven: Callable[[Confirmed], None]) -> Final:
    """A proven plan whose idle choices stay, as without them nothing is proven."""
    earned = tuple(replace(each, kept=True) for each in found.confirmed.earned)
    return _told(replace(found, confirmed=replace(found.confirmed, earned=earned)), proven)


def _fastest_measured(
    found: Final, proven: Callable[[Confirmed], None], doubtful: Sequence[Choice], length: Length
) -> Final:
    """Of the plan and those without an idle choice, or without both doubtful ones, that were measured beside it: the
    fastest that is proven, the plan itself where none of the shorter ones is."""
    idle = [earned.choice for earned in found.confirmed.earned if not earned.kept]
    some = [[choice] for choice in idle]
    some += [[*doubtful]] if len(doubtful) > 1 and all(_is_in(idle, choice) for choice in doubtful) else []
    shorter = [each for left in some if (each := _with_measured(found, left, length)) is not None]
    best = max(
        (each for each in shorter if is_proven(each.confirmed)),
        key=lambda each: each.confirmed.speedup.ratio,
        default=found,
    )
    return _with_all_kept(best, proven) if is_proven(best.confirmed) else found


def _with_measured(found: Final, idle: Sequence[Choice], length: Length) -> Final | None:
    """The plan without its idle choices, as the same heat has measured it; None where it has not, to the end."""
    name, seen = _without(*idle), found.outcome.seen
    if name not in seen or name in found.outcome.early:
        return None
    kept = [earned for earned in found.confirmed.earned if not _is_in(idle, earned.choice)]
    choices = without(found.confirmed.choices, *idle)
    if len(choices) != len(kept):
        return None
    confirmed = _confirmed(choices, seen[name], found.outcome, found.confirmed.noise, kept, length)
    return Final(confirmed=confirmed, outcome=found.outcome)
