"""A batch that is too small to fill the machine.

What it finds: Jobs for which a batch of four times the size takes less than twice as long: most of a step is spent on
what does not depend on how many samples it has.

Why it costs: Every operation has a price of its own, whatever its size, and so has every step. The bound is what is
left when that price is nothing: what one more sample costs, by the two largest of the sizes that were tried.

When to ignore it: A larger batch takes fewer steps an epoch, so it learns otherwise: the learning rate has to follow,
and quality has to be looked at. Where the batch is small on purpose, it stays.

Fix: Try a larger batch, with `hasten tune --allow training` or by hand.

Safety: Nothing is changed by itself: it changes what is learned.
"""

from __future__ import annotations

from collections.abc import Iterator

from hasten.doctor.rule import FoundInRun, RunProfile, RunRule, Severity
from hasten.doctor.run_rules.step_costs import MUCH, loops, seconds_of_samples, share_of_loops, stalls
from hasten.doctor.run_rules.waiting_for_data import is_waiting
from hasten.facts.profiles import LITTLE

_STALLED = 0.5  # of a step: what else it takes is within the noise of that
_MUCH = 0.5  # of the operations: a loop that begins them is to blame


def check(profile: RunProfile) -> Iterator[FoundInRun]:
    stalled = sum(line.seconds for line in stalls(profile))
    if not profile.larger or stalled > _STALLED * profile.larger[0].step.value:
        return
    one, four = profile.larger[:2]
    times = (four.step.value - stalled) / (one.step.value - stalled)
    fixed = 1 - seconds_of_samples(profile) / one.step.value
    in_loops = share_of_loops(profile, loops(profile))
    if times < LITTLE and in_loops < _MUCH and fixed > MUCH:
        message = f"four times the {profile.batch_size} samples of a batch take {times:.2g} times as long"
        waited = profile.waited.value if is_waiting(profile) else 0.0  # which another finding is about
        yield FoundInRun(message, fixed * (profile.together.value - waited))


RULE = RunRule(
    code="H703",
    severity=Severity.SLOW,
    fix="try a larger batch: it changes what is learned, so look at its quality",
    technique="batch_size",
    check=check,
)
