"""Training waits for a disk, a network or a lock.

What it finds: A job whose steps are at least 5 % faster when their batches are loaded already, and whose
loading leaves its cores idle most of the time. So loading itself waits for a disk, a network or a lock.

Why it matters: A step cannot begin without its batch. The upper bound comes from steps whose batches were
loaded before.

Fix: Read ahead in workers (`loader_workers`), or keep what was read (`cache`, `in_memory`). Pack many small
files into shards with `hasten pack`.

When to ignore: The data is slow only the first time, and the system's file cache holds it afterwards.

Automatic fix: None.
"""

from __future__ import annotations

from collections.abc import Iterator

from hasten.doctor.rule import FoundInRun, RunProfile, RunRule
from hasten.doctor.run_rules.step_costs import is_computing, is_waiting, waiting


def check(profile: RunProfile) -> Iterator[FoundInRun]:
    if is_waiting(profile) and not is_computing(profile):
        cores = profile.reading_cores
        busy = profile.loading_cpu / profile.loading.value / cores
        of_them = f"{cores} cores" if cores > 1 else "a core"
        yield waiting(profile, f"loading is mostly idle, with {100 * busy:.0f} % of {of_them} in use")


RULE = RunRule(
    code="H701",
    fix="read ahead or keep what was read: add loader_workers, cache or in_memory to the plan",
    technique="loader_workers",
    check=check,
)
