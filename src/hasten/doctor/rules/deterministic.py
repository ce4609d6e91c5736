"""Deterministic algorithms in every run.

What it finds: `cudnn.deterministic = True` and `torch.use_deterministic_algorithms(True)`, under no condition.

Why it costs: Only algorithms that give the same bits in every run may be used; these are often slower. An operation
that has none raises an error, or warns.

When to ignore it: In debugging, or where results must be repeated bit by bit.

Fix: Put it under an option, so that a long run can do without.

Safety: Nothing is changed by itself: whether bits must be the same, a person knows.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hasten.doctor.reading.steps.process_switches import assigned, is_constant, stays
from hasten.doctor.rule import Code, Found, SourceRule

_SETTING = "torch.backends.cudnn.deterministic"
_FUNCTIONS = ("torch.use_deterministic_algorithms", "torch.set_deterministic")


def check(code: Code) -> Iterator[Found]:
    settings = assigned(code, _SETTING)
    for assignment, value in settings.items():
        if is_constant(code, value, True) and stays(code, assignment, [*settings]):
            yield Found(assignment, "every convolution must use a deterministic algorithm, and those are often slower")
    calls = [*code.calls_to(*_FUNCTIONS)]
    for call in calls:
        mode = code.values.argument(call, "mode", 0)
        if isinstance(mode, ast.expr) and is_constant(code, mode, True) and stays(code, call, [*calls]):
            yield Found(call, "every operation must use a deterministic algorithm, and those are often slower")


RULE = SourceRule(
    code="H305",
    fix="put it under an option, so that a long run can do without",
    check=check,
)
