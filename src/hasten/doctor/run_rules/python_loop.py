"""A loop in Python around small operations.

What it finds: Loops and comprehensions in the job's own functions that begin many tensor operations in each step, or
in which Python runs for a fifth of the step without any. Loops over layers begin none themselves, and are not meant.

Why it costs: Each operation costs some microseconds of Python and of dispatch, forward and backward, before it computes
anything. An operation on all elements at once pays that once.

When to ignore it: Where each turn of the loop needs the result of the one before, and no fused operator does the whole,
as a recurrent layer of torch does.

Fix: Compute on whole tensors: a batched product, a convolution, an index, `torch.cumsum`, `torch.vmap`. Where that is
not possible, plan `compile`.

Safety: Nothing is changed by itself.
"""

from __future__ import annotations

from collections.abc import Iterator

from hasten.doctor.run_rules.contract import MUCH, FoundInRun, RunRule
from hasten.doctor.run_rules.fixed_costs import by_function, loops
from hasten.facts.finding import Severity
from hasten.facts.run_look import RunLook

_READS = 0.25  # of a line's operations, from which on it is the reads that are to blame


def check(look: RunLook) -> Iterator[FoundInRun]:
    lines = [line for line in loops(look) if not line.reads or line.reads < _READS * line.operations]
    begun = max(sum(line.operations for line in look.lines if not line.in_loading), 1)
    for function in by_function(lines):
        operations = sum(line.operations for line in function)
        backward = look.parts.get("backward", 0.0) * operations / begun
        seconds = min(sum(line.high for line in function) + backward, look.together.value)
        if seconds > MUCH * look.together.value:
            first = function[0]
            what = f"{operations:,} operations on tensors in a step" if operations else "no operation on tensors"
            message = f"a loop in Python, in {first.function}, begins {what}"
            yield FoundInRun(message, seconds, first)


RULE = RunRule(
    code="H704",
    name="python_loop",
    severity=Severity.SLOW,
    fix="compute on whole tensors, or plan compile",
    technique="compile",
    check=check,
)
