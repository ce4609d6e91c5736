"""Deterministic algorithms in every run.

What it finds: `torch.backends.cudnn.deterministic = True` and `torch.use_deterministic_algorithms(True)`
under no condition.

Why it matters: Only algorithms that give the same bits in every run are allowed, and those are often slower.
An operation without one raises an error or warns.

Fix: Enable it with an option, so that long runs can do without.

    torch.use_deterministic_algorithms(args.deterministic)

When to ignore: You are debugging, or results must be repeatable bit for bit.

Automatic fix: None. Only you know whether the bits must be the same.
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
            message = "cudnn.deterministic = True allows deterministic convolutions only, which are often slower"
            yield Found(assignment, message)
    calls = [*code.calls_to(*_FUNCTIONS)]
    for call in calls:
        mode = code.values.argument(call, "mode", 0)
        if isinstance(mode, ast.expr) and is_constant(code, mode, True) and stays(code, call, [*calls]):
            message = f"{ast.unparse(call)} allows deterministic algorithms only, which are often slower"
            yield Found(call, message)


RULE = SourceRule(
    code="H305",
    fix="enable it with an option, so that long runs can do without",
    check=check,
)
