"""A loop in Python around small operations.

What it finds: Loops and comprehensions in the job's own functions that begin the same tensor operations again and again
in each step, themselves or in functions of the job and layers that they call. A loop over layers or parameters, each of
which is used once, is not meant, whatever stands beside them.

Why it costs: Each operation costs some microseconds of Python and of dispatch, forward and backward, before it computes
anything, and the backward pass of a part may fill the whole. An operation on all elements at once pays that once.

When to ignore it: Where each turn of the loop needs the result of the one before, and no fused operator does the whole,
as a recurrent layer of torch does.

Fix: Compute on whole tensors: a batched product, a convolution, an index, `torch.cumsum`, `torch.vmap`. Where that is
not possible, plan `compile`.

Safety: Nothing is changed by itself.
"""

from __future__ import annotations

from collections.abc import Iterator

from hasten.doctor.rule import FoundInRun, Line, RunProfile, RunRule, Severity
from hasten.doctor.run_rules.step_costs import MUCH, by_function, loops, turns_of

_READS = 0.25  # of a line's operations, from which on it is the reads that are to blame
_ABOUT = 0.7  # of the longest line's seconds
_NOISE = 1.25  # the operations of a backward pass were timed in few steps


def check(profile: RunProfile) -> Iterator[FoundInRun]:
    lines = [line for line in loops(profile) if not line.reads or line.reads < _READS * line.operations]
    for function in by_function(lines):
        turns = [turns_of(line) for line in function]
        operations = sum(each.operations for each in turns)
        share = sum(each.backward for each in turns)
        backward = profile.parts.get("backward", 0.0)
        # Not the high end: that of a line which no sample has met is three percent already.
        if sum(max(each.seconds, each.timed) for each in turns) + share * backward > MUCH * profile.together.value:
            seconds = sum(each.high for each in turns) + min(1.0, _NOISE * share) * backward
            first = _first_of_the_longest(function)
            message = f"a loop in Python, in {first.function}, begins {operations:,} operations on tensors in a step"
            yield FoundInRun(message, min(seconds, profile.together.value), first)


def _first_of_the_longest(lines: list[Line]) -> Line:
    """In the source, and the same one in every look where several are about as long."""
    longest = max(turns_of(line).high for line in lines)
    return min((line for line in lines if turns_of(line).high >= _ABOUT * longest), key=lambda line: line.line)


RULE = RunRule(
    code="H704",
    severity=Severity.SLOW,
    fix="compute on whole tensors, or plan compile",
    technique="compile",
    check=check,
)
