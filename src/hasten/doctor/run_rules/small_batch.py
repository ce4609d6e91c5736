"""A batch that is too small to fill the machine.

What it finds: Jobs for which four times the batch takes less than twice as long.

Why it costs: Every operation and every step has a fixed cost. The bound is the step without it: what its samples cost,
by the two largest sizes that were tried.

When to ignore it: Where the batch is small on purpose. A larger one takes fewer steps an epoch, so it trains
differently: adapt the learning rate, and check the quality.

Fix: Try a larger batch, with `hasten tune --allow training` or by hand.

Safety: Nothing is changed by itself: it changes what is learned.
"""

from __future__ import annotations

from collections.abc import Iterator

from hasten.doctor.rule import FoundInRun, RunProfile, RunRule
from hasten.doctor.run_rules.step_costs import MUCH, is_waiting, loops, seconds_of_samples, share_of_loops, stalls
from hasten.facts.profiles import LITTLE

_MUCH = 0.5  # of the operations: a loop that begins them is to blame


def check(profile: RunProfile) -> Iterator[FoundInRun]:
    if not profile.larger or stalls(profile):  # which take as long with any batch
        return
    one, four = profile.larger[:2]
    times = four.step.value / one.step.value
    fixed = 1 - seconds_of_samples(profile) / one.step.value
    in_loops = share_of_loops(profile, loops(profile))
    if times < LITTLE and in_loops < _MUCH and fixed > MUCH:
        message = f"four times the {profile.batch_size} samples of a batch take {times:.2g} times as long"
        waited = profile.waited.value if is_waiting(profile) else 0.0  # which another finding is about
        yield FoundInRun(message, fixed * (profile.together.value - waited))


RULE = RunRule(
    code="H703",
    fix="try a larger batch: it changes what is learned, so look at its quality",
    technique="batch_size",
    check=check,
)
