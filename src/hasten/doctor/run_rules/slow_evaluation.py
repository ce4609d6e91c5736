"""Evaluations take a large share of the epoch.

What it finds: A job whose evaluations take at least 20 % of an epoch.

Why it matters: The model does not train during an evaluation.

Fix: Evaluate with larger batches (`evaluation_batch`), less often (`evaluate_every`), or on fewer samples.

When to ignore: Early stopping needs the result that often.

Automatic fix: None.
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
    fix="add evaluation_batch to the plan, or evaluate less often",
    technique="evaluation_batch",
    check=check,
)
