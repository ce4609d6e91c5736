"""A model that is compiled again and again.

What it finds: Functions that torch's compiler compiled again during the steps, with the guard that failed: another
shape, or a Python value that changed. A second time is usual: sizes become symbolic then.

Why it costs: Each compilation takes seconds, and after a few of them the compiler gives up and runs Python.

When to ignore it: Where it ends: a last batch of another size is compiled once.

Fix: Pad to few sizes, drop the last batch, plan `compile` with `dynamic`, and keep counters out of what forward reads.

Safety: Nothing is changed by itself.
"""

from __future__ import annotations

from collections.abc import Iterator

from hasten.doctor.rule import FoundInRun, RunProfile, RunRule
from hasten.facts.profiles import CompilerNote

_USUAL = 1  # a function is compiled a second time with symbolic sizes


def check(profile: RunProfile) -> Iterator[FoundInRun]:
    places: dict[tuple[str, int], list[CompilerNote]] = {}
    for each in profile.recompiled:
        places.setdefault((each.path, each.line), []).append(each)
    for first, *others in places.values():
        times = first.times + sum(each.times for each in others)
        if times > _USUAL:
            message = f"the compiler recompiled this {times} times, most often because {first.why}"
            yield FoundInRun(message, None, first)


RULE = RunRule(
    code="H711",
    fix="pad to few sizes, or plan compile with dynamic",
    technique="compile",
    check=check,
)
