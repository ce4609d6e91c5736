"""What trials and the end of a search are taken to need, in seconds: what is begun has to be finished in time.

Nothing is decided by these but what there is time for. The proof of gradients is the one part whose length nothing has
told before: it is taken to be what small jobs need, and a few steps of this one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from hasten.facts.choice import Choice, Preserves
from hasten.tune.proof.by_bits import STEPS_OF_AN_EPOCH
from hasten.tune.proof.by_losses import FEWEST_STEPS, SEEDS
from hasten.tune.search.candidates import EVALUATION_ALONE, SAME_GRADIENTS
from hasten.tune.search.comparison import ROUNDS_OF_A_CONTROL, ROUNDS_OF_AN_ARM
from hasten.tune.search.plan_profile import Look
from hasten.tune.search.search_log import SHARE_OF_CURVES
from hasten.tune.search.time_needed import last_seconds

REFERENCES_SECONDS, STEPS_OF_GRADIENTS = 6.0, 8  # of keeping float64 references, and of the proof beside them
STEPS_OF_REFERENCES = 32  # of the plain job, whose time the fewest references take at least
STEPS_OF_SAME_GRADIENTS = 4  # of either arm
REPORT_SECONDS = 2.0
SLACK = 1.1  # a machine is not always as fast as when it was looked at


def arm_seconds(look: Look, choice: Choice) -> float:
    """Of trying one choice on top of the plan that was looked at: an arm of its own."""
    if choice.technique in EVALUATION_ALONE:
        return look.arm_start_seconds + ROUNDS_OF_AN_ARM * look.evaluating_seconds
    return look.arm_start_seconds + ROUNDS_OF_AN_ARM * look.window_seconds


def heat_seconds(look: Look, choices: Sequence[Choice], controls: int) -> float:
    """Of trying these beside so many arms of the plan that was looked at."""
    tried = math.fsum(arm_seconds(look, choice) for choice in choices)
    return tried + controls * (look.arm_start_seconds + ROUNDS_OF_A_CONTROL * look.window_seconds)


def end_seconds(plain: Look, look: Look, sure: Sequence[Choice], doubtful: Sequence[Choice], asked: float) -> float:
    """Of the proofs, the confirmation and the report of a plan that may have these choices.

    plain: the look at the job as it is; look: the last one; asked: seconds that the whole search was given.
    """
    proofs = _proofs_seconds(plain, look, [*sure, *doubtful], asked)
    return REPORT_SECONDS + SLACK * (proofs + last_seconds(plain, look, sure, doubtful))


def _proofs_seconds(plain: Look, look: Look, choices: Sequence[Choice], asked: float) -> float:
    claims, seconds = {choice.preserves for choice in choices}, 0.0
    rounding = {choice.technique for choice in choices if choice.preserves is Preserves.ROUNDING}
    if Preserves.BITS in claims:
        seconds += 2 * (plain.start_seconds + 2 * STEPS_OF_AN_EPOCH * plain.step_seconds)
    if rounding - SAME_GRADIENTS:
        references = max(REFERENCES_SECONDS, STEPS_OF_REFERENCES * plain.step_seconds)
        seconds += references + STEPS_OF_GRADIENTS * plain.step_seconds
    elif rounding:
        seconds += 2 * (plain.start_seconds + STEPS_OF_SAME_GRADIENTS * plain.step_seconds)
    if Preserves.STATISTICS in claims:
        fewest = FEWEST_STEPS * (plain.step_seconds + look.step_seconds)
        seconds += max(asked * SHARE_OF_CURVES, SEEDS * (fewest + 2 * plain.start_seconds))
    return seconds
