"""How long the last heat takes, and what it does with the time there is.

What it measures is quoted, so its windows should run as the planned run will. An arm that was stopped while others ran
finds its caches cold, and a window of two or three steps tells of that as much as of the job. So the time goes to
windows first, until a switch hardly shows in them; then to more processes of each arm, as processes of the same code
differ for as long as they live; and then to windows that are longer still.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from hasten.facts.choice import Choice
from hasten.measure.paired import LEAST_PAIRS
from hasten.tune.candidates import EVALUATION_ALONE
from hasten.tune.final import FAR
from hasten.tune.heat import LOOKS, Pace
from hasten.tune.look import Look
from hasten.tune.runner import WINDOW_SECONDS

SETTLED_STEPS, SETTLED_SECONDS = 8, 0.5  # of a window that a switch hardly shows in, whichever is less
LONG_WINDOW_SECONDS = 2.0
MOST_STARTS = 4  # processes of an arm
KNOWN = LOOKS[1]  # rounds after which an arm that may leave early mostly has left


def last_pace(
    plain: Look, look: Look, sure: Sequence[Choice], doubtful: Sequence[Choice], once: float, seconds: float
) -> Pace:
    """plain: the look at the job as it is; look: the one at the plan, or the nearest there is; once: seconds that an
    arm's start takes more than these say, as compiling does; seconds: that there are."""

    def fits(steps: int, starts: int = 1) -> bool:
        return last_seconds(plain, look, sure, doubtful, once=once, steps=steps, starts=starts) <= seconds

    short, long = plain.steps_in(WINDOW_SECONDS), plain.steps_in(LONG_WINDOW_SECONDS)
    settled = max(short, min(SETTLED_STEPS, plain.steps_in(SETTLED_SECONDS)))
    steps, starts = _most(range(short, settled + 1), fits), 1
    if steps == settled:
        starts = _most(range(1, MOST_STARTS + 1), lambda starts: fits(settled, starts))
        steps = _most(range(settled, long + 1), lambda steps: fits(steps, starts))
    return Pace(steps=steps, evaluations=plain.evaluations_at_the_end, starts=starts)


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
    """As final.py has its arms: the plain job twice, the plan, and the plan without some of its choices.

    steps: of a window; the fewest, where none are given."""
    steps = plain.steps_in(WINDOW_SECONDS) if steps is None else steps
    together = len(sure) > 0 and len(doubtful) > 1
    shorter = (len(sure) + len(doubtful) if len(sure) + len(doubtful) > 1 else 0) + together
    stay, window = 1 + len(doubtful) + together, steps * look.step_seconds
    plain_rounds = LEAST_PAIRS + (LOOKS[-1] if plain.step_seconds > FAR * look.step_seconds else LEAST_PAIRS)
    rounds = LEAST_PAIRS * stay + KNOWN * (shorter + 1 - stay)
    windows = plain_rounds * steps * plain.step_seconds + rounds * window
    begun = starts if 3 + shorter <= plain.room else LEAST_PAIRS
    starting = begun * (2 * plain.seconds_to_start(steps) + (1 + shorter) * (look.seconds_to_start(steps) + once))
    choices = [choice for choice in (*sure, *doubtful) if choice.technique in EVALUATION_ALONE]
    always = 1 + len(choices) if choices else 0  # arms that evaluate in every round
    evaluations = (3 + shorter - always) * plain.evaluations_at_the_end + always * LEAST_PAIRS
    return windows + starting + evaluations * look.evaluating_seconds


def _most(values: Iterable[int], fits: Callable[[int], bool]) -> int:
    """The last one of those that fit, from the first on; the first one, where none does."""
    found, *more = values
    for value in more:
        if not fits(value):
            break
        found = value
    return found
