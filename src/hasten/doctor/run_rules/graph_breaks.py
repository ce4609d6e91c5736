"""Places where a compiled model falls back to Python.

What it finds: Graph breaks of torch's compiler, by the line of the user's code and the compiler's own reason.

Why it costs: The model is compiled in pieces. Between two of them Python runs as before, and nothing is fused across.

When to ignore it: Where the pieces are large, and the break is outside of what takes the time.

Fix: Keep numbers in tensors (`.item()` and conditions on tensors break), and move printing and logging out of forward.

Safety: Nothing is changed by itself.
"""

from __future__ import annotations

from collections.abc import Iterator

from hasten.doctor.rule import FoundInRun, RunProfile, RunRule


def check(profile: RunProfile) -> Iterator[FoundInRun]:
    for each in profile.graph_breaks:
        yield FoundInRun(f"the compiled model falls back to Python here: {each.why}", None, each)


RULE = RunRule(
    code="H710",
    fix="keep numbers in tensors, and printing out of forward",
    technique="compile",
    check=check,
)
