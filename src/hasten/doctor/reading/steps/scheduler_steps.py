"""Schedulers of torch in a file: the call that makes each, the loops in which it steps, and how often it does.

`EPOCHS * len(loader)` is 10 times one length where EPOCHS is 10. What has no known value has no amount.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

from hasten.doctor.reading.names.argument_values import Values
from hasten.doctor.reading.names.name_resolution import Names
from hasten.doctor.reading.names.scopes import Loop, iterated
from hasten.doctor.reading.steps.accumulation_windows import Windows
from hasten.doctor.reading.steps.optimizer_events import Action, Event, Turn, Updates

_LIBRARY = "torch.optim.lr_scheduler."
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
            case ast.Call(ast.Name("range"), [ast.Constant(int(start)), ast.Constant(int(stop))]):
                return Amount(Fraction(stop - start))
            case ast.Call(ast.Name("range"), [ast.Constant(1), ast.BinOp(stop, ast.Add(), ast.Constant(1))]):
                return self.of(stop)
            case ast.Name() | ast.Attribute() as loader:
                return Amount(Fraction(1), (self._loader(loader),))
            case _:
                return None

    def _loader(self, node: ast.expr) -> str:
        making = self._names.making(node)
        return f"made on line {making.lineno}:{making.col_offset}" if making is not None else ast.unparse(node)


@dataclass(frozen=True, slots=True, eq=False)
class Schedule:
    """kind: such as "OneCycleLR". event: its step(). loops: around it but not its making, the outermost first."""

    kind: str
    making: ast.Call
    event: Event
    loops: tuple[Loop, ...]

    @property
    def call(self) -> ast.Call:
        assert isinstance(self.event.node, ast.Call)
        return self.event.node

    @property
    def name(self) -> str:
        return ast.unparse(self.event.target or self.call)


class Schedules:
    def __init__(self, names: Names, values: Values, updates: Updates, windows: Windows) -> None:
        self._names, self._values, self._updates, self._windows = names, values, updates, windows
        self.amounts = Amounts(names, values)

    def stepped(self, kind: str) -> Iterator[Schedule]:
        """Once for each call of step() in a loop that trains."""
        widest = dict[ast.AST, Schedule]()
        for turn, event in self._events():
            making = self._names.making(event.target)
            known_as = self._names.qualified(making.func) if making is not None else None
            if making is None or known_as != _LIBRARY + kind or making in turn.nodes or not isinstance(turn.node, Loop):
                continue
            loops = (turn.node, *(node for node, _ in event.around if isinstance(node, Loop)))
            known = widest.get(event.node)
            if known is None or len(known.loops) < len(loops):
                widest[event.node] = Schedule(kind, making, event, loops)
        yield from widest.values()

    def _events(self) -> Iterator[tuple[Turn, Event]]:
        return ((turn, event) for turn in self._updates.turns for event in turn.of(Action.SCHEDULE))

    def steps_elsewhere(self, schedule: Schedule) -> bool:
        """Whether the file steps it in several places."""
        nodes = {event.node for _, event in self._events() if self._names.making(event.target) is schedule.making}
        return len(nodes) > 1

    def amount(self, schedule: Schedule) -> Amount | None:
        """How often it steps in all; None where that is not certain."""
        factors = [self.amounts.turns(loop) for loop in schedule.loops]
        for node, branch in schedule.event.around:
            if isinstance(node, ast.If):
                count = self._windows.counted(node, branch)
                every = self._values.constant(count.every) if count is not None else None
                factors.append(Amount(Fraction(1, every)) if isinstance(every, int) and every > 0 else None)
            elif isinstance(node, ast.IfExp | ast.ExceptHandler | ast.BoolOp):
                return None
        total: Amount | None = Amount(Fraction(1))
        for each in factors:
            total = total.times(each) if total is not None else None
        return total
