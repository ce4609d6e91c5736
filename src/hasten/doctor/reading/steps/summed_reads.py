"""Sums of numbers that steps read from the device, `total += loss.item()`, as sums of tensors that stay there.

Python adds in float64. So do tensors after `.double()`, to the same bits, and counts are whole numbers in both.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from hasten.doctor.edits import Append, CutAfter, Edit, Enclose
from hasten.doctor.reading.names.scopes import Binding, Kind, begin
from hasten.doctor.reading.source_code import Code
from hasten.doctor.reading.steps.training_steps import Step

_COMPARE = frozenset({"eq", "ne", "gt", "lt", "ge", "le"})


@dataclass(frozen=True, slots=True)
class _Sum:
    """begun: what it begins as. reads: what is added to it, in the order of the file. uses: where it is read."""

    begun: list[ast.expr | None]
    reads: list[ast.Call]
    uses: list[ast.Name]


def edits_of_sum(code: Code, step: Step, read: ast.AST) -> tuple[Edit, ...]:
    """All that the sum needs, given its first read: it stays on the device, and becomes a number where it is used. ()
    where each turn uses it, where it may be more than a sum of such reads, and for its other reads."""
    found = _sum_of(code, step, read)
    if found is None or found.reads[0] is not read:
        return ()
    number = _number_of(code, found)
    places = {*map(begin, found.uses)}
    if not number or len(places) < len(found.uses) or any(map(_every_turn(code, step), found.uses)):
        return ()  # before Python 3.12, two places in one f-string can be given as one
    plain = [each for each in found.uses if not _is_number(code, each)]
    return (*_on_device(found.reads, number), *(Enclose(each, number) for each in plain))


def _sum_of(code: Code, step: Step, read: ast.AST) -> _Sum | None:
    statement = _sum_around(code, read)
    if statement is None or step.node not in code.names.around(statement):
        return None
    assert isinstance(statement.target, ast.Name)
    name, scope = statement.target.id, code.scopes.of(statement)
    bindings = scope.outer.get(name, scope).bindings[name]
    begun = [each.source for each in bindings if each.kind is Kind.VALUE]
    reads = [each for each in map(partial(_read_of, code), bindings) if each is not None]
    if len(begun) + len(reads) < len(bindings):
        return None
    return _Sum(begun, reads, [*_uses(code, name, bindings)])


def _number_of(code: Code, found: _Sum) -> str:
    """What makes a number of it: "int", "float", or "" where that is not known."""
    bases = [*map(_base, found.reads)]
    begun = [each.value if isinstance(each, ast.Constant) else None for each in found.begun]
    if not all(map(code.tensors.is_on_device, bases)):
        return ""
    if all(_is_count(code, each) for each in bases) and all(type(each) is int for each in begun):
        return "int"
    if all(_is_loss(code, each) for each in bases) and all(type(each) in (int, float) for each in begun):
        return "float"
    return ""


def _sum_around(code: Code, read: ast.AST) -> ast.AugAssign | None:
    """`total += read`, and `total += read * len(x)`."""
    node = code.names.parents[read]
    while isinstance(node, ast.BinOp):
        node = code.names.parents[node]
    match node:
        case ast.AugAssign(ast.Name(), ast.Add(), value) if _read_in(code, value) is read:
            return node
        case _:
            return None


def _read_of(code: Code, binding: Binding) -> ast.Call | None:
    adds = isinstance(binding.node, ast.AugAssign) and isinstance(binding.node.op, ast.Add)
    return _read_in(code, binding.source) if adds else None


def _read_in(code: Code, node: ast.AST | None) -> ast.Call | None:
    match node:
        case ast.Call(ast.Attribute(_, "item"), [], []):
            return node
        case ast.BinOp(left, ast.Mult(), right):
            for one, other in ((left, right), (right, left)):
                if _is_size(code, other):
                    return _read_in(code, one)
        case _:
            pass
    return None


def _is_size(code: Code, node: ast.AST) -> bool:
    """Whether it surely is a number of Python."""
    match code.names.followed(node):
        case ast.Constant(int() | float()) | ast.Call(ast.Name("len")) | ast.Call(ast.Attribute(_, "size"), [_]):
            return True
        case ast.Subscript(ast.Attribute(_, "shape"), ast.Constant()):
            return True
        case _:
            return False


def _base(read: ast.Call) -> ast.expr:
    assert isinstance(read.func, ast.Attribute)
    return read.func.value


def _is_count(code: Code, node: ast.expr) -> bool:
    """`(output.argmax(1) == y).sum()`, and `output.argmax(1).eq(y).sum()`."""
    match node:
        case ast.Call(ast.Attribute(summed, "sum"), [], []):
            pass
        case ast.Call(function, [summed], []) if code.names.qualified(function) == "torch.sum":
            pass
        case _:
            return False
    match code.names.followed(summed):
        case ast.Compare(ops=[_]):
            return True
        case ast.Call(ast.Attribute(_, method)):
            return method in _COMPARE
        case _:
            return False


def _is_loss(code: Code, node: ast.expr) -> bool:
    """Whether it is a tensor of floating-point numbers."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "detach":
        node = node.func.value
    compares = any(isinstance(each, ast.Compare) for each in ast.walk(node))
    return not compares and (code.tensors.is_attached(node) or code.tensors.is_loss(node))


def _uses(code: Code, name: str, bindings: Sequence[Binding]) -> Iterator[ast.Name]:
    """Where the sum is read, in any function."""
    own = {*map(id, bindings)}
    for each in code.all(ast.Name):
        if each.id == name and isinstance(each.ctx, ast.Load) and own & {*map(id, code.names.bindings(each))}:
            yield each


def _every_turn(code: Code, step: Step) -> Callable[[ast.Name], bool]:
    conditional = {each.node: each.is_conditional for each in step.ran}

    def answer(use: ast.Name) -> bool:
        return not conditional.get(use, step.node not in code.names.around(use))

    return answer


def _is_number(code: Code, use: ast.Name) -> bool:
    """`float(total)` is one already."""
    around = code.names.parents[use]
    return isinstance(around, ast.Call) and code.names.qualified(around.func) in {"builtins.float", "builtins.int"}


def _on_device(reads: Sequence[ast.Call], number: str) -> Iterator[Edit]:
    for read in reads:
        base = _base(read)
        yield CutAfter(read, base)
        if number == "float":
            is_detached = isinstance(base, ast.Call) and getattr(base.func, "attr", "") == "detach"
            yield Append(base, ".double()" if is_detached else ".detach().double()")
