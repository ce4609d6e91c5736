"""Settings of the whole process, such as `torch.backends.cudnn.benchmark`: where a file makes one outright."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hasten.doctor.reading.names.constants import Unknown
from hasten.doctor.reading.names.scopes import Function
from hasten.doctor.reading.source_code import Code

_ASKED_FOR_BY = ("determin", "reproduc", "benchmark", "tf32", "precision")  # in a function's name
_CALLS_DEEP = 4


def is_outright(code: Code, node: ast.AST, depth: int = 0) -> bool:
    """Whether it runs whenever the file does its work: under no condition, and not in a function that is only called
    under one."""
    if code.is_conditional(node) or _comes_after_leaving(code, node):
        return False
    function = code.names.enclosing(node, ast.FunctionDef, ast.AsyncFunctionDef)
    if not isinstance(function, Function) or depth > _CALLS_DEEP:
        return True
    if _is_test(code, function):
        return False
    calls = [each for each in code.names.calls_of(function) if function not in code.names.around(each)]
    if calls:
        return any(is_outright(code, each, depth + 1) for each in calls)
    return not any(word in function.name.lower() for word in _ASKED_FOR_BY)


def _is_test(code: Code, function: Function) -> bool:
    """Tests compare bits, and need them to be the same."""
    owner = code.names.parents[function]
    bases = [ast.unparse(each) for each in owner.bases] if isinstance(owner, ast.ClassDef) else []
    return function.name.startswith("test_") or any(each.endswith("TestCase") for each in bases)


def _comes_after_leaving(code: Code, node: ast.AST) -> bool:
    """Behind `if …: return`, or behind an import that may fail."""
    inside = node
    for each in code.names.around(node):
        body = next((body for body in _bodies(each) if inside in body), [])
        before = body[: body.index(inside)] if inside in body else []
        if any(isinstance(one, ast.If) and isinstance(one.body[-1], ast.Return | ast.Continue) for one in before):
            return True
        if isinstance(each, ast.Try) and any(isinstance(one, ast.Import | ast.ImportFrom) for one in before):
            return True
        if isinstance(each, Function):
            return False
        inside = each
    return False


def _bodies(node: ast.AST) -> Iterator[list[ast.AST]]:
    for name in ("body", "orelse", "finalbody"):
        value = getattr(node, name, None)
        if isinstance(value, list):
            yield value


def assigned(code: Code, *names: str) -> dict[ast.Assign, ast.expr]:
    """What is assigned to settings of these full names, in the file's order."""
    return dict(code.assignments_to(*names))


def is_constant(code: Code, node: ast.expr, value: object) -> bool:
    """Whether it is that, written there: not what an option says by default."""
    given = code.values.constant(node)
    return not isinstance(given, Unknown) and given is value and isinstance(code.names.followed(node), ast.Constant)


def is_put_back(code: Code, node: ast.AST, others: list[ast.AST]) -> bool:
    """Whether the same function makes the setting again: what is between the two is an exception that it makes."""
    function = code.names.enclosing(node, ast.FunctionDef, ast.AsyncFunctionDef)
    return any(
        other is not node and code.names.enclosing(other, ast.FunctionDef, ast.AsyncFunctionDef) is function
        for other in others
    )
