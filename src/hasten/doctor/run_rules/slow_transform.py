"""Training waits for decoding and transforms.

What it finds: A job whose steps are at least 5 % faster when their batches are loaded already, and whose
loading keeps its cores busy with decoding, augmentation or Python code per sample. If the training process
loads the data, the finding names its slowest line. Workers are not sampled, so profile with `loader_workers =
0` to see that line.

Why it matters: A step cannot begin without its batch. The upper bound comes from steps whose batches were
loaded before.

Fix: Use more workers (`loader_workers`), compute once what is the same in every epoch (`cache`), or transform
whole batches on the device (`device_transform`).

When to ignore: The transform is already as cheap as it can be, and no cores are free.

Automatic fix: None.
"""

from __future__ import annotations

from collections.abc import Iterator

from hasten.doctor.rule import FoundInRun, RunProfile, RunRule
from hasten.doctor.run_rules.step_costs import is_computing, is_waiting, waiting


def check(profile: RunProfile) -> Iterator[FoundInRun]:
    if is_waiting(profile) and is_computing(profile):
        yield waiting(profile, f"loading a batch takes {profile.loading_cpu * 1e3:.3g} ms of processor time")


RULE = RunRule(
    code="H702",
    fix="use workers, or compute once: add loader_workers, cache or device_transform to the plan",
    technique="loader_workers",
    check=check,
)
