"""How often something runs, as far as a file shows it: a number times the lengths of loaders.

`EPOCHS * len(loader)` is 10 times one length where EPOCHS is 10. What has no known value has no amount.
"""

from __future__ import annotations

import ast
from collections import Counter
from dataclasses import dataclass
from fractions import Fraction

from hasten.doctor.reading.names.argument_values import Values
from hasten.doctor.reading.names.name_resolution import Names
from hasten.doctor.reading.names.scopes import Loop, iterated

_DEEPEST = 8


@dataclass(frozen=True, slots=True)
class Amount:
    """lengths: a text for each loader whose length is a factor; "made on line …" where its making is in the file."""

    number: Fraction
    lengths: tuple[str, ...] = ()

    def times(self, other: Amount | None) -> Amount | None:
        """None where the other is not known."""
        if other is None:
            return None
        return Amount(self.number * other.number, tuple(sorted(self.lengths + other.lengths)))

    def without(self, other: Amount) -> tuple[str, ...]:
        """The lengths that the other does not have."""
        return tuple((Counter(self.lengths) - Counter(other.lengths)).elements())

    def __str__(self) -> str:
        number = [] if self.number == 1 and self.lengths else [f"{float(self.number):g}"]
        return " * ".join([*number, *("len(loader)" for _ in self.lengths)])


class Amounts:
    def __init__(self, names: Names, values: Values) -> None:
        self._names, self._values = names, values

    def of(self, node: ast.AST | None, depth: int = 0) -> Amount | None:
        """None for what is not a product of numbers and lengths."""
        value = self._values.constant(node)
        if isinstance(value, int | float) and not isinstance(value, bool):
            return Amount(Fraction(value))
        match self._names.followed(node):
            case ast.BinOp(left, ast.Mult(), right) if depth < _DEEPEST:
                first = self.of(left, depth + 1)
                return first.times(self.of(right, depth + 1)) if first is not None else None
            case ast.BinOp(left, ast.Div() | ast.FloorDiv(), right) if depth < _DEEPEST:
                first, divisor = self.of(left, depth + 1), self._values.constant(right)
                known = isinstance(divisor, int | float) and bool(divisor)
                return first.times(Amount(1 / Fraction(divisor))) if first is not None and known else None
            case ast.Call(function, [inner]) if self._names.qualified(function) == "builtins.len":
                return Amount(Fraction(1), (self._loader(inner),))
            case _:
                return None

    def turns(self, loop: Loop) -> Amount | None:
        """How often a loop turns; None where that is not known, or where it may end early."""
        if isinstance(loop, ast.While) or any(isinstance(each, ast.Break | ast.Return) for each in ast.walk(loop)):
            return None
        match iterated(loop.iter):
            case ast.Call(ast.Name("range"), [stop]):
                return self.of(stop)
            case ast.Call(ast.Name("range"), [start, stop]):
                first, last = self._values.constant(start), self._values.constant(stop)
                return Amount(Fraction(last - first)) if isinstance(first, int) and isinstance(last, int) else None
            case ast.Name() | ast.Attribute() as loader:
                return Amount(Fraction(1), (self._loader(loader),))
            case _:
                return None

    def _loader(self, node: ast.expr) -> str:
        making = self._names.making(node)
        return f"made on line {making.lineno}:{making.col_offset}" if making is not None else ast.unparse(node)
