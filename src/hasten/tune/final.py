"""The proof of a whole plan's speed: beside the untouched job, and beside itself without each of its choices.

All arms are new processes on windows of their own. A search looks at many choices and keeps the luckiest; here luck has
to come twice. A plan whose interval reaches down to 1 is no plan; and the plain job runs once more in a second process,
where equal arms lie apart, the plan must lie farther.

What a choice is worth is what the plan loses without it. Each was faster beyond noise when it joined, so what is asked
here is whether that is still there: one without which the plan is as fast, or faster, or no farther off than equal arms
are from each other, earns nothing and goes. Of one that stays the interval says how sure this second answer alone would
be. When several go, the rest is measured again, as two choices can stand in for each other: either alone can go, and
both together not.

What was given up: where one choice goes, the plan without it is quoted by the windows that it was compared on, which
favours it by a part of their noise. Where not all arms fit into memory beside each other, choices are left out in heats
of their own, beside the whole plan.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from hasten.facts.choice import Choice, Speedup
from hasten.facts.trials import Confirmed, Earned
from hasten.tune.arms import Arms
from hasten.tune.candidates import in_groups, plan_of, without
from hasten.tune.heat import Outcome, Pace, Watch, run_heat
from hasten.tune.objective import WORTH_SEEING, Length, Seen, costs, is_gain, speedup
from hasten.tune.runner import Entry

PLAIN, AGAIN, WHOLE = "plain", "plain again", "whole plan"
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
) -> Final:
    """Confirm a plan, and take out what earns nothing until all that is left earns. Raises ArmFailed when the plain job
    or the whole plan fails.

    proven: is told every plan that is beyond noise, so that an interruption loses none; room: arms that fit into memory
    beside each other.
    """
    run = partial(_run, arms, pace, length, watch, room)
    while True:
        found = _measured(run, choices, length, room)
        confirmed = found.confirmed
        idle = [earned.choice for earned in confirmed.earned if not earned.kept]
        if is_proven(confirmed) and len(idle) < 2:
            proven(confirmed)
        if not confirmed.choices or not idle:
            return found
        left = without(choices, *idle)
        if len(idle) == 1 and (shorter := _with_measured(found, idle[0], length)) is not None:
            if is_proven(confirmed) and not is_proven(shorter.confirmed):
                return _with_all_kept(found)
            if is_proven(shorter.confirmed):
                proven(shorter.confirmed)
            return shorter
        if not left:
            plain = _confirmed((), found.outcome.base, found.outcome, (), length)
            return Final(confirmed=plain, outcome=found.outcome)
        choices = left


def is_proven(confirmed: Confirmed) -> bool:
    """Whether the plan is faster than the job by more than the job is faster, or slower, than itself."""
    noise = max(confirmed.noise.high, 1 / confirmed.noise.low) if confirmed.noise.low > 0 else 1.0
    apart = confirmed.noise.low > 1 or confirmed.noise.high < 1
    return is_gain(confirmed.speedup) and confirmed.speedup.low > (noise if apart else 1.0)


def _run(
    arms: Arms, pace: Pace, length: Length, watch: Watch, room: int, base: Entry, entries: Sequence[Entry]
) -> Outcome:
    return run_heat(arms, base, entries, replace(pace, resident=len(entries) < room), length, watch)


def _measured(run: Run, choices: Sequence[Choice], length: Length, room: int) -> Final:
    plain, whole_plan = Entry(name=PLAIN, plan=plan_of([])), Entry(name=WHOLE, plan=plan_of(choices), stays=True)
    controls = [Entry(name=AGAIN, plan=plan_of([]), stays=True), *([whole_plan] if choices else [])]
    shorter = {f"without {choice}": choice for choice in choices} if len(choices) > 1 else {}
    without_one = [Entry(name=name, plan=plan_of(without(choices, left)), stays=True) for name, left in shorter.items()]
    together = 1 + len(controls) + len(without_one) <= room
    outcome = run(plain, [*controls, *without_one] if together else controls)
    for control in controls:
        if control.name in outcome.failed:
            raise outcome.failed[control.name]
    whole = outcome.seen[WHOLE] if choices else outcome.base
    pairs = {name: (seen, whole) for name, seen in outcome.seen.items()}
    for group in [] if together else in_groups(without_one, max(room - 1, 1)):
        alone = run(whole_plan, group)
        pairs |= {name: (seen, alone.base) for name, seen in alone.seen.items()}
    noise = _distance(speedup(outcome.base, outcome.seen[AGAIN], length))
    earned = [_earned(left, pairs.get(name), noise, length) for name, left in shorter.items()]
    return Final(confirmed=_confirmed(choices, whole, outcome, earned, length), outcome=outcome)


def _confirmed(
    choices: Sequence[Choice], whole: Seen, outcome: Outcome, earned: Sequence[Earned], length: Length
) -> Confirmed:
    noise = speedup(outcome.base, outcome.seen[AGAIN], length)
    faster = speedup(outcome.base, whole, length) if choices else noise
    if len(choices) == 1:
        earned = [Earned(choice=choices[0], speedup=faster, kept=is_gain(faster))]
    return Confirmed(
        choices=tuple(choices),
        speedup=faster,
        noise=noise,
        plain=costs(outcome.base, length),
        planned=costs(whole, length),
        earned=tuple(earned),
    )


def _earned(left: Choice, measured: tuple[Seen, Seen] | None, noise: float, length: Length) -> Earned:
    """measured: the plan without it and the whole plan; None where it failed: the plan needs the choice to run."""
    if measured is None:
        return Earned(choice=left, speedup=Speedup(ratio=1, low=1, high=1, pairs=0), kept=True)
    found = speedup(*measured, length)
    return Earned(choice=left, speedup=found, kept=found.ratio >= max(WORTH_SEEING, noise))


def _distance(noise: Speedup) -> float:
    """How far equal arms lie apart, as a ratio; 1 where they need not."""
    return 1.0 if noise.low <= 1 <= noise.high else max(noise.ratio, 1 / noise.ratio)


def _with_all_kept(found: Final) -> Final:
    """A proven plan whose idle choice stays, as without it nothing is proven."""
    earned = tuple(replace(each, kept=True) for each in found.confirmed.earned)
    return replace(found, confirmed=replace(found.confirmed, earned=earned))


def _with_measured(found: Final, idle: Choice, length: Length) -> Final | None:
    """The plan without its one idle choice, as the same heat has measured it; None where that arm failed."""
    name = f"without {idle}"
    if name not in found.outcome.seen:
        return None
    kept = [earned for earned in found.confirmed.earned if earned.choice is not idle]
    choices = without(found.confirmed.choices, idle)
    if len(choices) != len(kept):
        return None
    seen = found.outcome.seen[name]
    return Final(confirmed=_confirmed(choices, seen, found.outcome, kept, length), outcome=found.outcome)
