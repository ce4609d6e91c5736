"""A loop in Python around small operations.

What it finds: Loops and comprehensions in the job's own functions that start small tensor operations again and again in
each step, also in functions and layers that they call. A loop over layers or parameters, each of which is used once, is
not reported.

Why it costs: Each operation costs some microseconds of Python and dispatch, forward and backward, and the backward pass
of a part may fill the whole. An operation on all elements pays that once.

When to ignore it: Where each turn needs the one before, and no fused operator (a recurrent layer) does the whole.

Fix: Compute on whole tensors: a batched product, an index, `torch.cumsum`, `torch.vmap`; else plan `compile`.

Safety: Nothing is changed by itself.
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
            message = f"a loop in Python, in {slowest.function}, begins {operations:,} operations on tensors in a step"
            yield FoundInRun(message, min(seconds, profile.together.value), slowest)


RULE = RunRule(
    code="H704",
    fix="compute on whole tensors, or plan compile",
    technique="compile",
    check=check,
)
