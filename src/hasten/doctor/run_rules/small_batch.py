"""A batch that is too small to fill the machine.

What it finds: Jobs for which a batch of four times the size takes less than twice as long: most of a step is spent on
what does not depend on how many samples it has.

Why it costs: Every operation has a price of its own, whatever its size, and so has every step. The bound is what is
left when that price is nothing: the seconds that one more sample costs, by the two largest of the sizes that were
tried.

When to ignore it: A larger batch takes fewer steps an epoch, so it learns otherwise: the learning rate has to follow,
and quality has to be looked at. Where the batch is small on purpose, it stays.

Fix: Try a larger batch, with `hasten tune --allow training` or by hand.

Safety: Nothing is changed by itself: it changes what is learned.
"""

from __future__ import annotations

from collections.abc import Iterator

from hasten.doctor.rule import FoundInRun, RunProfile, RunRule, Severity
from hasten.doctor.run_rules.step_costs import (
    MUCH,
    fixed_loading_seconds,
    fixed_seconds,
    share_of_loops,
    stalled_seconds,
)
from hasten.facts.profiles import LITTLE

_STALLED = 0.5  # of a step: what else it takes is within the noise of that
_MUCH = 0.5  # of the operations: a loop that begins them is to blame


def check(profile: RunProfile) -> Iterator[FoundInRun]:
    stalled = stalled_seconds(profile)
    if not profile.larger or stalled > _STALLED * profile.larger[0].step.value:
        return
    one, four = profile.larger[:2]
    times = (four.step.value - stalled) / (one.step.value - stalled)
    fixed = fixed_seconds(profile)
    if times < LITTLE and share_of_loops(profile) < _MUCH and fixed > MUCH * profile.together.value:
        message = f"four times the {profile.batch_size} samples of a batch take {times:.2g} times as long"
        # No batch spares what its samples cost; the one that was enlarged may be longer than the others.
        by_samples = (1 - fixed / one.step.value) * min(one.step.value, profile.computing.value, profile.together.value)
        # Of steps that were slower by chance than when it was enlarged, all that is left may be fixed.
        computing = max(fixed, profile.together.value - profile.waited.value - by_samples)
        yield FoundInRun(message, min(computing + fixed_loading_seconds(profile), profile.together.value - by_samples))


RULE = RunRule(
    code="H703",
    severity=Severity.SLOW,
    fix="try a larger batch: it changes what is learned, so look at its quality",
    technique="batch_size",
    check=check,
)
