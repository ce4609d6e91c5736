"""Python loop around small operations.

What it finds: Loops and comprehensions in the job's own functions that start many small tensor operations in
each step, also through functions and layers that they call. A loop over layers or parameters, each used once,
is not reported.

Why it matters: Each operation costs some microseconds of Python and dispatch, forward and backward. An
operation on the whole tensor pays that once.

Fix: Compute on whole tensors: a batched product, indexing, `torch.cumsum`, `torch.vmap`. Otherwise add
`compile` to the plan.

    # instead of: torch.stack([a[i] @ b[i] for i in range(len(a))])
    product = torch.bmm(a, b)

When to ignore: Each iteration needs the one before, and no fused operator (for example a recurrent layer)
does the whole loop.

Automatic fix: None.
"""

from __future__ import annotations

from collections.abc import Iterator

from hasten.doctor.rule import FoundInRun, RunProfile, RunRule
from hasten.doctor.run_rules.step_costs import MUCH, by_function, loops, share_of_loops

_READS = 0.25  # of a line's operations, from which on it is the reads that are to blame
_BACKWARD = 2.0  # times the loop's share of the operations, at most, is its share of the backward pass


def check(profile: RunProfile) -> Iterator[FoundInRun]:
    lines = [line for line in loops(profile) if not line.reads or line.reads < _READS * line.operations]
    for function in by_function(lines):
        turns = {line.line: line.turns for line in function if line.turns is not None}
        share, backward = share_of_loops(profile, function), profile.parts.get("backward", 0.0)
        # Not the high end: that of a line which no sample has met is three percent already.
        least = sum(max(each.seconds, each.timed) for each in turns.values()) + share * backward
        if least > MUCH * profile.together.value:
            seconds = sum(each.high for each in turns.values()) + min(1.0, _BACKWARD * share) * backward
            slowest = max(function, key=lambda line: turns[line.line].high)
            operations = sum(each.operations for each in turns.values())
            message = f"a Python loop in {slowest.function} starts {operations:,} tensor operations in every step"
            yield FoundInRun(message, min(seconds, profile.together.value), slowest)


RULE = RunRule(
    code="H704",
    fix="compute on whole tensors, or add compile to the plan",
    technique="compile",
    check=check,
)
