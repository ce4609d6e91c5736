"""How long the last heat takes, and what it does with the time there is.

What it measures is quoted, so its windows should run as the planned run will. An arm that was stopped while others ran
finds its caches cold, and the shorter its windows are, the more they tell of that. So the time goes to windows first,
up to those of which the first step is a small part; then to more processes of each arm, as processes of the same code
differ for as long as they live; and then to windows that are longer still.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from hasten.facts.choice import Choice
from hasten.measure.paired_timing import LEAST_PAIRS
from hasten.tune.search.candidates import EVALUATION_ALONE
from hasten.tune.search.compared_arm import WINDOW_SECONDS
from hasten.tune.search.comparison import ROUNDS_OF_A_CONTROL, ROUNDS_OF_AN_ARM, Pace
from hasten.tune.search.confirmation import FAR
from hasten.tune.search.plan_profile import Look

SETTLED_STEPS, SETTLED_SECONDS = 8, 0.5  # of a window, whichever is less
LONG_WINDOW_SECONDS = 2.0
MOST_STARTS = 4  # processes of an arm
CONTROLS = 3  # the plan and the plain job twice


def last_pace(
    plain: Look, look: Look, sure: Sequence[Choice], doubtful: Sequence[Choice], once: float, seconds: float
) -> Pace:
    """plain: the look at the job as it is; look: that at the plan, or at as much of it as was looked at; once: seconds
    that a process of the plan pays beyond those, as for compiling; seconds: that there are."""

    def fits(steps: int, starts: int = 1) -> bool:
        return last_seconds(plain, look, sure, doubtful, once=once, steps=steps, starts=starts) <= seconds

    short, long = plain.steps_in(WINDOW_SECONDS), plain.steps_in(LONG_WINDOW_SECONDS)
    settled = max(short, min(SETTLED_STEPS, plain.steps_in(SETTLED_SECONDS)))
    steps, starts = _most(range(short, settled + 1), fits), 1
    if steps == settled:
        starts = _most(range(1, MOST_STARTS + 1), lambda starts: fits(settled, starts))
        steps = _most(range(settled, long + 1), lambda steps: fits(steps, starts))
    return Pace(steps=steps, evaluations=plain.evaluations_at_the_end, starts=starts)


@dataclass(frozen=True, kw_only=True, slots=True)
class LastArms:
    """What final.py has in the last heat. processes, windows: of the plain job, and of the plan with what is left of it
    without some of its choices; evaluations: that are timed, of all arms."""

    plain_processes: int
    plan_processes: int
    plain_windows: int
    plan_windows: int
    evaluations: int


def last_seconds(
    plain: Look,
    look: Look,
    sure: Sequence[Choice],
    doubtful: Sequence[Choice],
    *,
    once: float = 0.0,
    steps: int | None = None,
    starts: int = 1,
) -> float:
    """Seconds of the last heat. steps: of a window; the fewest, where none are given."""
    steps = plain.steps_in(WINDOW_SECONDS) if steps is None else steps
    arms = last_arms(plain, sure, doubtful, starts, is_far=plain.step_seconds > FAR * look.step_seconds)
    return (
        arms.plain_processes * plain.seconds_to_start(steps)
        + arms.plan_processes * (look.seconds_to_start(steps) + once)
        + arms.plain_windows * steps * plain.step_seconds
        + arms.plan_windows * steps * look.step_seconds
        + arms.evaluations * look.evaluating_seconds
    )


def last_arms(
    plain: Look, sure: Sequence[Choice], doubtful: Sequence[Choice], starts: int, *, is_far: bool
) -> LastArms:
    """is_far: whether the plan is so much faster that the second plain process leaves early. What surely earns mostly
    does so as well."""
    choices, room = [*sure, *doubtful], plain.room
    singles = len(choices) if len(choices) > 1 else 0
    pair = 1 if len(doubtful) > 1 and len(choices) > len(doubtful) else 0
    together = CONTROLS + singles + pair <= room
    shorter = singles + (pair if together else 0)
    groups = 0 if together else math.ceil(singles / max(room - 1, 1))  # each beside the whole plan again
    first_arms, more_arms = (CONTROLS + shorter, 0) if together else (CONTROLS, groups + shorter)
    first = starts if first_arms <= room else LEAST_PAIRS  # who has no place is a new process at every turn
    more = starts if room > 1 else LEAST_PAIRS
    rounds = LEAST_PAIRS * (1 + groups + shorter - singles)
    if singles:
        rounds += ROUNDS_OF_AN_ARM * len(sure) + LEAST_PAIRS * len(doubtful)
    evaluating = [choice for choice in choices if choice.technique in EVALUATION_ALONE]
    always = 1 + len(evaluating) if evaluating else 0  # arms that evaluate in every round
    return LastArms(
        plain_processes=2 * first,
        plan_processes=(first_arms - 2) * first + more_arms * more,
        plain_windows=LEAST_PAIRS + (ROUNDS_OF_A_CONTROL if is_far else LEAST_PAIRS),
        plan_windows=rounds,
        evaluations=(first_arms + more_arms - always) * plain.evaluations_at_the_end + always * LEAST_PAIRS,
    )


def _most(values: Iterable[int], fits: Callable[[int], bool]) -> int:
    """The last one of those that fit, from the first on; the first one, where none does."""
    found, *more = values
    for value in more:
        if not fits(value):
            break
        found = value
    return found
