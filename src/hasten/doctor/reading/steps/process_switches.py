"""Process-wide settings of torch, such as `torch.backends.cudnn.benchmark`: where a file makes one unconditionally."""

from __future__ import annotations

import ast
from collections.abc import Collection

from hasten.doctor.reading.names.argument_values import Unknown
from hasten.doctor.reading.names.scopes import Function, begin
from hasten.doctor.reading.source_code import Code

_ASKED_FOR_BY = ("determin", "reproduc", "benchmark", "tf32", "precision", "test_")  # in a function's name
_CALLS_DEEP = 4


def is_unconditional(code: Code, node: ast.AST, depth: int = 0) -> bool:
    """Whether it runs whenever the file does its work: not under a condition, in a `try`, or in a function that is only
    called under a condition."""
    if code.is_conditional(node) or code.names.enclosing(node, ast.Try) is not None:
        return False
    function = code.names.enclosing(node, ast.FunctionDef, ast.AsyncFunctionDef)
    if not isinstance(function, Function) or depth > _CALLS_DEEP:
        return True
    if any(isinstance(each, ast.Return) and begin(each) < begin(node) for each in ast.walk(function)):
        return False  # `if not exact: return`
    calls = [each for each in code.names.calls_of(function) if function not in code.names.around(each)]
    if calls:
        return any(is_unconditional(code, each, depth + 1) for each in calls)
    return not any(word in function.name.lower() for word in _ASKED_FOR_BY)


def assigned(code: Code, *names: str) -> dict[ast.Assign, ast.expr]:
    """What is assigned to settings of these full names, in the file's order."""
    return dict(code.assignments_to(*names))


def is_constant(code: Code, node: ast.expr, value: object) -> bool:
    """Whether it is written there as that constant: not what an option says by default."""
    given = code.values.constant(node)
    return not isinstance(given, Unknown) and given is value and isinstance(code.names.followed(node), ast.Constant)


def stays(code: Code, node: ast.AST, others: Collection[ast.AST]) -> bool:
    """Whether it is unconditional, and its function does not set it a second time, which would restore it."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    function = code.names.enclosing(node, *kinds)
    again = any(each is not node and code.names.enclosing(each, *kinds) is function for each in others)
    return is_unconditional(code, node) and not again
