"""Graph break in a compiled model.

What it finds: Graph breaks of `torch.compile`, with the line in your code and the compiler's reason.

Why it matters: The model is compiled in pieces. Between two pieces plain Python runs, and no kernel is fused
across the break.

Fix: Keep values in tensors, because `.item()` and conditions on tensors break the graph. Move printing and
logging out of `forward()`.

    x = torch.where(x.mean() > 0, x, -x)  # instead of: if x.mean() <= 0: x = -x

When to ignore: The pieces are large, and the break is outside the slow part.

Automatic fix: None.
"""

from __future__ import annotations

from collections.abc import Iterator

from hasten.doctor.rule import FoundInRun, RunProfile, RunRule


def check(profile: RunProfile) -> Iterator[FoundInRun]:
    for each in profile.graph_breaks:
        yield FoundInRun(f"torch.compile breaks the graph here: {each.why}", None, each)


RULE = RunRule(
    code="H710",
    fix="keep values in tensors, and move printing out of forward()",
    technique="compile",
    check=check,
)
