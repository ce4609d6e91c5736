"""Compiled function that is recompiled again and again.

What it finds: Functions that `torch.compile` recompiled during the steps, with the guard that failed: another
shape, or a Python value that changed. One recompilation is normal, because sizes become symbolic then, and is
not reported.

Why it matters: Each compilation takes seconds. After several of them the compiler gives up and runs plain
Python.

Fix: Pad inputs to a few sizes, or drop the last, smaller batch. Add `compile` with the option `dynamic =
true` to the plan. Keep counters out of what `forward()` reads.

When to ignore: It stops: a last batch of another size is compiled once.

Automatic fix: None.
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
            message = f"torch.compile recompiled this {times} times, most often because {first.why}"
            yield FoundInRun(message, None, first)


RULE = RunRule(
    code="H711",
    fix="pad inputs to a few sizes, or add compile with dynamic = true to the plan",
    technique="compile",
    check=check,
)
