"""Batch too small to fill the machine.

What it finds: A job for which a batch four times as large takes less than twice as long.

Why it matters: Each step and each operation has a fixed cost, whatever the batch size. The upper bound is the
step without that fixed cost, computed from the two largest batch sizes that were tried.

Fix: Try a larger batch with `hasten tune --allow training`, or set `batch_size` in the job.

When to ignore: The batch is small on purpose. A larger batch makes fewer steps per epoch, so it trains
differently: adapt the learning rate, and check the final quality.

Automatic fix: None. It changes training.
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
        size, larger = profile.batch_size, four.times * profile.batch_size
        message = f"a batch of {larger} samples takes only {times:.2g} times as long as one of {size}"
        waited = profile.waited.value if is_waiting(profile) else 0.0  # which another finding is about
        yield FoundInRun(message, fixed * (profile.together.value - waited))


RULE = RunRule(
    code="H703",
    fix="try a larger batch, and check the final quality: it changes training",
    technique="batch_size",
    check=check,
)
