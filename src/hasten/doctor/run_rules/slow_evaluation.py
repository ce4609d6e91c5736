"""Evaluations that take a large share of the epoch.

What it finds: Jobs whose evaluations take a fifth of an epoch or more.

Why it costs: Nothing is learned in them.

When to ignore it: Where early stopping needs to know that often.

Fix: Evaluate with larger batches (`evaluation_batch`), less often (`evaluate_every`), or on fewer samples.

Safety: Nothing is changed by itself.
"""

from __future__ import annotations

from collections.abc import Iterator

from hasten.doctor.rule import FoundInRun, RunRule
from hasten.facts.finding import Severity
from hasten.facts.profiles import NotMeasured, RunProfile

_MUCH = 0.2  # of an epoch


def check(look: RunProfile) -> Iterator[FoundInRun]:
    if isinstance(look.evaluation_seconds, NotMeasured):
        return
    seconds = look.evaluations_per_epoch * look.evaluation_seconds
    if seconds > _MUCH * look.epoch_seconds:
        message = f"evaluations take {100 * seconds / look.epoch_seconds:.0f} % of an epoch"
        yield FoundInRun(message, 0.0, epoch_seconds=seconds)


RULE = RunRule(
    code="H709",
    name="slow_evaluation",
    severity=Severity.SLOW,
    fix="plan evaluation_batch, or evaluate less often",
    technique="evaluation_batch",
    check=check,
)
