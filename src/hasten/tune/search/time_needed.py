"""Estimates the seconds of trials, proofs and the confirmation: what a search begins has to be finished in time.

The confirmation uses the time that is left: first for windows in which the first step after a stop is a small part;
then for several processes of each arm, which differ for as long as they live; and then for longer windows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

from hasten.facts.choice import Choice, Preserves
from hasten.facts.trials import Doing
from hasten.measure.paired_timing import LEAST_PAIRS
from hasten.tune.proof.claim_proofs import FEWEST_STEPS, SEEDS, STEPS_OF_AN_EPOCH, STEPS_OF_GRADIENTS
from hasten.tune.search.candidates import EVALUATION_ALONE, is_proven_by_bits
from hasten.tune.search.compared_arm import WINDOW_SECONDS
from hasten.tune.search.comparison import REPEATS_OF_A_CONTROL, REPEATS_OF_AN_ARM, ComparisonSettings
from hasten.tune.search.confirmation import FAR
from hasten.tune.search.plan_profile import PlanProfile
from hasten.tune.search.search_log import SHARE_OF_CURVES

REFERENCES_SECONDS = 6.0  # of float64 references
STEPS_OF_REFERENCES = 32  # of the baseline, whose time the fewest references take at least
REPORT_SECONDS = 2.0
SLACK = 1.1  # a machine is not always as fast as when it was profiled

SETTLED_STEPS, SETTLED_SECONDS = 8, 0.5  # of a window, whichever is less
LONG_WINDOW_SECONDS = 2.0
MOST_STARTS = 4  # processes of an arm
CONTROLS = 3  # the plan, and the baseline twice


def arm_seconds(profile: PlanProfile, choice: Choice) -> float:
    """Of trying one choice on top of the profiled plan."""
    if choice.technique in EVALUATION_ALONE:
        return profile.arm_start_seconds + REPEATS_OF_AN_ARM * profile.evaluating_seconds
    return profile.arm_start_seconds + REPEATS_OF_AN_ARM * profile.window_seconds


def comparison_seconds(profile: PlanProfile, choices: Sequence[Choice], controls: int) -> float:
    """Of trying these beside so many arms of the profiled plan."""
    tried = math.fsum(arm_seconds(profile, choice) for choice in choices)
    return tried + controls * (profile.arm_start_seconds + REPEATS_OF_A_CONTROL * profile.window_seconds)


def end_seconds(
    baseline: PlanProfile, profile: PlanProfile, sure: Sequence[Choice], doubtful: Sequence[Choice], asked: float
) -> float:
    """Of the proofs, the confirmation and the report of a plan that may have these choices.

    profile: the last one; asked: seconds that the whole search was given.
    """
    proofs = _proofs_seconds(baseline, profile, [*sure, *doubtful], asked)
    return REPORT_SECONDS + SLACK * (proofs + confirmation_seconds(baseline, profile, sure, doubtful))


def _proofs_seconds(baseline: PlanProfile, profile: PlanProfile, choices: Sequence[Choice], asked: float) -> float:
    seconds, claims = 0.0, {choice.preserves for choice in choices if not is_proven_by_bits(choice)}
    if any(map(is_proven_by_bits, choices)):
        seconds += 2 * (baseline.start_seconds + 2 * STEPS_OF_AN_EPOCH * baseline.step_seconds)
    if Preserves.ROUNDING in claims:
        references = max(REFERENCES_SECONDS, STEPS_OF_REFERENCES * baseline.step_seconds)
        seconds += references + STEPS_OF_GRADIENTS * baseline.step_seconds
    if Preserves.STATISTICS in claims:
        fewest = FEWEST_STEPS * (baseline.step_seconds + profile.step_seconds)
        seconds += max(asked * SHARE_OF_CURVES, SEEDS * (fewest + 2 * baseline.start_seconds))
    return seconds


def warning_of(step_seconds: float, needed_seconds: float, seconds_left: float) -> Doing | None:
    """That the shortest search that can find a plan takes longer than there is time; None where it does not. The first
    trial of the most promising choice, its proof and its confirmation are run whatever the time."""
    if needed_seconds <= seconds_left:
        return None
    needed = f"{needed_seconds:.0f} s" if needed_seconds < 120 else f"{math.ceil(needed_seconds / 60)} min"
    what = (
        f"a step takes {step_seconds:.3g} s, so the shortest search that can find a plan takes about {needed} more, "
        f"and --seconds leaves {max(seconds_left, 0):.0f} s; Ctrl-C ends it"
    )
    return Doing(what=what, stays=True)


# ── the confirmation ────────────────────────────────────────────────────────────────────────────────────────────────


def confirmation_settings(
    baseline: PlanProfile,
    profile: PlanProfile,
    sure: Sequence[Choice],
    doubtful: Sequence[Choice],
    once: float,
    seconds: float,
) -> ComparisonSettings:
    """profile: of the plan, or of as much of it as was profiled; once: seconds that a process of the plan pays beyond
    those, as for compiling; seconds: that there are."""

    def fits(steps: int, starts: int = 1) -> bool:
        needed = confirmation_seconds(baseline, profile, sure, doubtful, once=once, steps=steps, starts=starts)
        return needed <= seconds

    short, long = baseline.steps_in(WINDOW_SECONDS), baseline.steps_in(LONG_WINDOW_SECONDS)
    settled = max(short, min(SETTLED_STEPS, baseline.steps_in(SETTLED_SECONDS)))
    steps, starts = _most(range(short, settled + 1), fits), 1
    if steps == settled:
        starts = _most(range(1, MOST_STARTS + 1), lambda starts: fits(settled, starts))
        steps = _most(range(settled, long + 1), lambda steps: fits(steps, starts))
    return ComparisonSettings(steps=steps, evaluations=baseline.evaluations_at_the_end, starts=starts)


def confirmation_seconds(
    baseline: PlanProfile,
    profile: PlanProfile,
    sure: Sequence[Choice],
    doubtful: Sequence[Choice],
    *,
    once: float = 0.0,
    steps: int | None = None,
    starts: int = 1,
) -> float:
    """steps: of a window; None for the fewest. Arms without a sure choice are assumed to be dropped early, and so is
    the second process of the baseline where the plan is far faster."""
    steps = baseline.steps_in(WINDOW_SECONDS) if steps is None else steps
    choices = [*sure, *doubtful]
    singles = len(choices) if len(choices) > 1 else 0
    pair = 1 if len(doubtful) > 1 and sure else 0
    first = starts if baseline.room >= CONTROLS else LEAST_PAIRS  # an arm that does not fit is new at every turn
    more = (starts if baseline.room > 1 else LEAST_PAIRS) * (singles + pair)
    is_far = baseline.step_seconds > FAR * profile.step_seconds
    plain_windows = LEAST_PAIRS + (REPEATS_OF_A_CONTROL if is_far else LEAST_PAIRS)
    plan_windows = LEAST_PAIRS * (1 + pair)
    if singles:
        plan_windows += REPEATS_OF_AN_ARM * len(sure) + LEAST_PAIRS * len(doubtful)
    evaluating = [choice for choice in choices if choice.technique in EVALUATION_ALONE]
    always = 1 + len(evaluating) if evaluating else 0  # arms that evaluate in every repeat
    evaluations = (CONTROLS + singles + pair - always) * baseline.evaluations_at_the_end + always * LEAST_PAIRS
    return (
        2 * first * baseline.seconds_to_start(steps)
        + (first + more) * (profile.seconds_to_start(steps) + once)
        + plain_windows * steps * baseline.step_seconds
        + plan_windows * steps * profile.step_seconds
        + evaluations * profile.evaluating_seconds
    )


def _most(values: Iterable[int], fits: Callable[[int], bool]) -> int:
    """The last one of those that fit, from the first on; the first one, where none does."""
    found, *more = values
    for value in more:
        if not fits(value):
            break
        found = value
    return found
