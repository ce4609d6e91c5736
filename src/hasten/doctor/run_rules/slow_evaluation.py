"""Evaluations that take a large share of the epoch.

What it finds: Jobs whose evaluations take a fifth of an epoch or more.

Why it costs: Nothing is learned in them.

When to ignore it: Where early stopping needs to know that often.

Fix: Evaluate with larger batches (`evaluation_batch`), less often (`evaluate_every`), or on fewer samples.

Safety: Nothing is changed by itself.
"""

from __future__ import annotations

from collections.abc import Iterator

from hasten.doctor.rule import FoundInRun, RunProfile, RunRule
from hasten.facts.profiles import NotMeasured

_MUCH = 0.2  # of an epoch


def check(profile: RunProfile) -> Iterator[FoundInRun]:
    if isinstance(profile.evaluation_seconds, NotMeasured):
        return
    seconds = profile.evaluations_per_epoch * profile.evaluation_seconds
    if seconds > _MUCH * profile.epoch_seconds:
        message = f"evaluations take {100 * seconds / profile.epoch_seconds:.0f} % of an epoch"
        yield FoundInRun(message, 0.0, epoch_seconds=seconds)


RULE = RunRule(
    code="H709",
    fix="plan evaluation_batch, or evaluate less often",
    technique="evaluation_batch",
    check=check,
)
