"""How long trials, proofs, the confirmation and the acceptance of a plan take, by the profiles of the baseline and of
the plan: what a search begins has to be finished in time.

The confirmation uses the time that is left: first for windows in which the first step after a stop is a small part;
then for several processes of each arm, which differ for as long as they live; and then for longer windows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product

from hasten.facts.choice import Choice, Preserves
from hasten.measure.paired_timing import LEAST_PAIRS
from hasten.tuning.proof.bits_proof import STEPS_OF_AN_EPOCH
from hasten.tuning.proof.job_prover import STEPS_OF_GRADIENTS
from hasten.tuning.proof.short_runs import FEWEST_STEPS, SEEDS
from hasten.tuning.search.candidates import EVALUATION_ALONE, changes_training, is_proven_by_bits
from hasten.tuning.search.comparison import (
    REPEATS_OF_A_CONTROL,
    REPEATS_OF_AN_ARM,
    WINDOW_SECONDS,
    ComparisonSettings,
)
from hasten.tuning.search.plan_profile import PlanProfile
from hasten.tuning.search.search_log import SHARE_OF_CURVES

TIMED_SECONDS = 1.0  # of steps that a patched script takes in each of both runs, to time them
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
    turn = profile.measured_turn_seconds if profile.measures_turns(choice) else 0.0
    return profile.arm_start_seconds + REPEATS_OF_AN_ARM * profile.window_seconds + turn


def comparison_seconds(profile: PlanProfile, choices: Sequence[Choice], controls: int) -> float:
    """Of trying these beside so many arms of the profiled plan."""
    tried = math.fsum(arm_seconds(profile, choice) for choice in choices)
    control = profile.arm_start_seconds + REPEATS_OF_A_CONTROL * profile.window_seconds
    turns = 1 if profile.length.has_long_turns else controls
    turns *= any(map(profile.measures_turns, choices))
    return tried + controls * control + turns * profile.measured_turn_seconds


def repeats_seconds(profile: PlanProfile, arms: int) -> float:
    """Of the repeats after which most of so many arms are dropped, without their starts."""
    return REPEATS_OF_AN_ARM * arms * profile.window_seconds


def end_seconds(baseline: PlanProfile, profile: PlanProfile, choices: Sequence[Choice], asked: float) -> float:
    """Of the proofs, the confirmation, the acceptance and the report of a plan that may have these choices.

    profile: the last one; asked: seconds that the whole search was given.
    """
    proofs = proofs_seconds(baseline, profile, choices, asked)
    confirmed = confirmation_seconds(baseline, profile, choices)
    return seconds_to_result(profile, proofs + confirmed)


def seconds_to_result(profile: PlanProfile, seconds: float) -> float:
    """Of so many seconds of proofs and confirmation, and of the acceptance and the report after them."""
    return REPORT_SECONDS + SLACK * (seconds + acceptance_seconds(profile))


def acceptance_seconds(profile: PlanProfile) -> float:
    """Of a patched script: a run in its trial, and one that imports everything itself. profile: of the plan, or of as
    much of it as was profiled."""
    if not profile.accepted_steps:
        return 0.0
    steps = profile.accepted_steps
    more = 0.0 if (steps - 1) * profile.step_seconds >= TIMED_SECONDS else TIMED_SECONDS
    run = _seconds_to(profile, steps) + more
    return profile.length.process_seconds + 2 * run


def seconds_to_confirm(profile: PlanProfile, seconds_left: float) -> float:
    """That the confirmation may take, of what is left of the search. profile: as of acceptance_seconds."""
    return (seconds_left - REPORT_SECONDS) / SLACK - acceptance_seconds(profile)


def proofs_seconds(baseline: PlanProfile, profile: PlanProfile, choices: Sequence[Choice], asked: float) -> float:
    seconds, claims = 0.0, {choice.preserves for choice in choices if not is_proven_by_bits(choice)}
    if baseline.recipe_steps and not all(map(changes_training, choices)):
        seconds += math.fsum(_two_epochs_seconds(each, baseline.recipe_steps) for each in (baseline, profile))
    if any(map(is_proven_by_bits, choices)):
        seconds += 2 * _two_epochs_seconds(baseline, 2 * STEPS_OF_AN_EPOCH)
    if Preserves.ROUNDING in claims:
        seconds += _gradients_seconds(baseline)
    if Preserves.STATISTICS in claims:
        fewest = FEWEST_STEPS * (baseline.elapsed_seconds + profile.elapsed_seconds)
        seconds += max(asked * SHARE_OF_CURVES, SEEDS * (fewest + 2 * baseline.start_seconds))
    return seconds


def _gradients_seconds(baseline: PlanProfile) -> float:
    if baseline.gradient_processes:
        return baseline.gradient_processes * baseline.start_seconds + baseline.gradient_steps * baseline.elapsed_seconds
    references = max(REFERENCES_SECONDS, STEPS_OF_REFERENCES * baseline.step_seconds)
    return references + STEPS_OF_GRADIENTS * baseline.step_seconds


def _seconds_to(profile: PlanProfile, steps: int) -> float:
    """From the start of a process."""
    return profile.start_seconds + steps * profile.elapsed_seconds


def _two_epochs_seconds(profile: PlanProfile, steps: int) -> float:
    """Of a process that takes so many steps, half of them in its second epoch."""
    turn = profile.length.turn_seconds if profile.length.epochs > 1 else 0.0
    return _seconds_to(profile, steps) + turn


def confirmation_settings(
    baseline: PlanProfile, profile: PlanProfile, choices: Sequence[Choice], once: float, seconds: float
) -> ComparisonSettings:
    """profile: of the plan, or of as much of it as was profiled; once: seconds that a process of the plan pays beyond
    those, as for compiling; seconds: that there are."""
    short, long = baseline.steps_in(WINDOW_SECONDS), baseline.steps_in(LONG_WINDOW_SECONDS)
    settled = max(short, min(SETTLED_STEPS, baseline.steps_in(SETTLED_SECONDS)))
    steps, starts = short, 1
    for more_starts, more_steps in (
        *product([1], range(short + 1, settled + 1)),
        *product(range(2, MOST_STARTS + 1), [settled]),
        *product([MOST_STARTS], range(settled + 1, long + 1)),
    ):
        needed = confirmation_seconds(baseline, profile, choices, once=once, steps=more_steps, starts=more_starts)
        if needed > seconds:
            break
        steps, starts = more_steps, more_starts
    return ComparisonSettings(steps=steps, evaluations=baseline.evaluations_at_the_end, starts=starts)


def confirmation_seconds(
    baseline: PlanProfile,
    profile: PlanProfile,
    choices: Sequence[Choice],
    *,
    once: float = 0.0,
    steps: int | None = None,
    starts: int = 1,
) -> float:
    """steps: of a window; None for the fewest."""
    steps = baseline.steps_in(WINDOW_SECONDS) if steps is None else steps
    singles = len(choices) if len(choices) > 1 else 0
    first = starts if baseline.room >= CONTROLS else LEAST_PAIRS  # an arm that does not fit is new at every turn
    more = (starts if baseline.room > 1 else LEAST_PAIRS) * singles
    evaluating = [choice for choice in choices if choice.technique in EVALUATION_ALONE]
    always = 1 + len(evaluating) if evaluating else 0  # arms that evaluate in every repeat
    evaluations = (CONTROLS + singles - always) * baseline.evaluations_at_the_end + always * LEAST_PAIRS
    return (
        2 * first * baseline.seconds_to_start(steps)
        + (first + more) * (profile.seconds_to_start(steps) + once)
        + 2 * LEAST_PAIRS * steps * baseline.counted_seconds
        + (1 + singles) * LEAST_PAIRS * steps * profile.counted_seconds
        + evaluations * profile.evaluating_seconds
        + (CONTROLS + singles) * baseline.measured_turn_seconds
    )
