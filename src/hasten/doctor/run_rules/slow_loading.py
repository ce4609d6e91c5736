"""Training waits for a disk, a network or a lock.

What it finds: Jobs whose steps are faster by a twentieth or more when their batches are loaded already, and whose
loading leaves the processor idle most of the time: it waits for a disk, a network or a lock.

Why it costs: A step cannot begin without its batch. The bound is measured by steps whose batches were loaded before.

When to ignore it: Where the data is slow only the first time, and the system's cache holds it from then on.

Fix: Read ahead in workers, keep what was read in a cache or in memory, or pack small files into shards.

Safety: Nothing is changed by itself.
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
        yield waiting(profile, f"reading is idle most of the time: it uses {100 * busy:.0f} % of {of_them}")


RULE = RunRule(
    code="H701",
    fix="read ahead in workers, or keep what was read: plan loader_workers, cache or in_memory",
    technique="loader_workers",
    check=check,
)
