"""How often something runs, as far as a file shows it: a number times the lengths of loaders and of what has no value.

`EPOCHS * len(loader)` is 10 times "len(loader)" where EPOCHS is 10. Floors and ceilings are left out of account.
"""

from __future__ import annotations

import ast
from collections import Counter
from dataclasses import dataclass
from fractions import Fraction

from hasten.doctor.reading.names.constants import Values
from hasten.doctor.reading.names.name_resolution import Names
from hasten.doctor.reading.steps.training_steps import Loop, iterated

_ROUNDED = frozenset({"builtins.int", "builtins.round", "math.ceil", "math.floor", "numpy.ceil", "numpy.floor"})
_DEEPEST = 8


@dataclass(frozen=True, slots=True)
class Amount:
    """factors: what it is a product of, beside the number: "len" with what identifies a loader, or the name of what has
    no known value."""

    number: Fraction
    factors: tuple[tuple[str, str], ...] = ()

    def times(self, other: Amount) -> Amount:
        return Amount(self.number * other.number, tuple(sorted(self.factors + other.factors)))

    @property
    def lengths(self) -> tuple[tuple[str, str], ...]:
        return tuple(each for each in self.factors if each[0] == "len")

    def without(self, other: Amount) -> tuple[tuple[str, str], ...]:
        """Its factors that the other has not."""
        return tuple((Counter(self.factors) - Counter(other.factors)).elements())


class Amounts:
    """Of one file."""

    def __init__(self, names: Names, values: Values) -> None:
        self._names, self._values = names, values

    def of(self, node: ast.AST | None, depth: int = 0) -> Amount | None:
        """None of what is no product."""
        if node is None or depth > _DEEPEST:
            return None
        value = self._values.constant(node)
        if isinstance(value, int | float) and not isinstance(value, bool):
            return Amount(Fraction(value))
        node = self._names.followed(node)
        match node:
            case ast.Name() | ast.Attribute() | ast.Subscript():
                return Amount(Fraction(1), (("name", ast.unparse(node)),))
            case ast.BinOp(left, ast.Mult(), right):
                first, second = self.of(left, depth + 1), self.of(right, depth + 1)
                return first.times(second) if first is not None and second is not None else None
            case ast.BinOp(left, ast.Div() | ast.FloorDiv(), right):
                first, divisor = self.of(left, depth + 1), self._values.constant(right)
                if first is None or not isinstance(divisor, int | float) or not divisor:
                    return None
                return first.times(Amount(1 / Fraction(divisor)))
            case ast.UnaryOp(ast.USub(), operand):
                found = self.of(operand, depth + 1)
                return found.times(Amount(Fraction(-1))) if found is not None else None
            case ast.Call(_, [inner]) if self._names.qualified(node.func) == "builtins.len":
                return Amount(Fraction(1), (("len", self.identity(inner)),))
            case ast.Call(_, [inner]) if self._names.qualified(node.func) in _ROUNDED:
                return self.of(inner, depth + 1)
            case _:
                return None

    def turns(self, loop: Loop) -> Amount | None:
        """How often a loop turns; None where it may leave before its end."""
        if isinstance(loop, ast.While) or _may_leave(loop):
            return None
        gone_through = iterated(loop.iter)
        match gone_through:
            case ast.Call(ast.Name("range"), [stop]):
                return self.of(stop)
            case ast.Call(ast.Name("range"), [start, stop]):
                return self._between(start, stop)
            case ast.Call(ast.Name("zip")):
                return None
            case ast.Name() | ast.Attribute():
                return Amount(Fraction(1), (("len", self.identity(gone_through)),))
            case _:
                return None

    def _between(self, start: ast.expr, stop: ast.expr) -> Amount | None:
        """`range(1, epochs + 1)`."""
        first, last = self._values.constant(start), self._values.constant(stop)
        if isinstance(first, int) and isinstance(last, int):
            return Amount(Fraction(last - first))
        match stop:
            case ast.BinOp(inner, ast.Add(), ast.Constant(1)) if first == 1:
                return self.of(inner)
            case _:
                return self.of(stop) if first == 0 else None

    def identity(self, node: ast.expr) -> str:
        """Of a loader: of the call that makes it, where that can be seen."""
        making = self._names.making(node)
        return f"made on line {making.lineno}:{making.col_offset}" if making is not None else ast.unparse(node)


def _may_leave(loop: ast.For | ast.AsyncFor) -> bool:
    """Whether it has a `break` of its own, or a return."""
    waiting: list[ast.AST] = list(loop.body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Break | ast.Return):
            return True
        if isinstance(node, ast.For | ast.AsyncFor | ast.While):
            waiting += [each for each in ast.walk(node) if isinstance(each, ast.Return)]
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            waiting += ast.iter_child_nodes(node)
    return False
