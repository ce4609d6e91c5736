"""Training waits for decoding and transforms.

What it finds: Jobs whose steps are faster by a twentieth or more when their batches are loaded already, and whose
loading keeps its cores busy: decoding, augmentation, or Python for every sample. Where the training process loads
itself, its slowest line is named; workers are not sampled, so profile with `loader_workers = 0` to see it.

Why it costs: A step cannot begin without its batch. The bound is measured by steps whose batches were loaded before.

When to ignore it: Where a device transform or more workers are not possible and the transform is already lean.

Fix: Share it among workers, compute once what does not change between epochs, or transform whole batches.

Safety: Nothing is changed by itself.
"""

from __future__ import annotations

from collections.abc import Iterator

from hasten.doctor.rule import FoundInRun, RunProfile, RunRule
from hasten.doctor.run_rules.step_costs import is_computing, is_waiting, waiting


def check(profile: RunProfile) -> Iterator[FoundInRun]:
    if is_waiting(profile) and is_computing(profile):
        yield waiting(profile, f"reading a batch keeps a core busy for {profile.loading_cpu * 1e3:.3g} ms")


RULE = RunRule(
    code="H702",
    fix="share it among workers, or do it once or for whole batches: plan loader_workers, cache or device_transform",
    technique="loader_workers",
    check=check,
)
