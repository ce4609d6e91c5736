"""Schedulers of torch in a file: the call that makes each, and the loops in which it steps."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

from hasten.doctor.reading.names.amounts import Amount, Amounts
from hasten.doctor.reading.names.argument_values import Values
from hasten.doctor.reading.names.name_resolution import Names
from hasten.doctor.reading.names.scopes import Loop
from hasten.doctor.reading.steps.accumulation_windows import Windows
from hasten.doctor.reading.steps.optimizer_events import Action, Event, Updates

_LIBRARY = "torch.optim.lr_scheduler."


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
        for turn in self._updates.turns:
            for event in turn.of(Action.SCHEDULE):
                making = self._names.making(event.target)
                if making is None or self._names.qualified(making.func) != _LIBRARY + kind or making in turn.nodes:
                    continue
                if isinstance(turn.node, Loop):
                    inner = tuple(node for node, _ in event.around if isinstance(node, Loop))
                    found = Schedule(kind, making, event, (turn.node, *inner))
                    known = widest.get(event.node)
                    if known is None or len(known.loops) < len(found.loops):
                        widest[event.node] = found
        yield from widest.values()

    def steps_elsewhere(self, schedule: Schedule) -> bool:
        """Whether the file steps it in several places."""
        events = [event for turn in self._updates.turns for event in turn.of(Action.SCHEDULE)]
        return len({each.node for each in events if self._names.making(each.target) is schedule.making}) > 1

    def amount(self, schedule: Schedule) -> Amount | None:
        """How often it steps in all; None where that is not certain."""
        total: Amount | None = Amount(Fraction(1))
        for loop in schedule.loops:
            turns = self.amounts.turns(loop)
            total = total.times(turns) if total is not None and turns is not None else None
        for node, branch in schedule.event.around:
            if isinstance(node, ast.If):
                count = self._windows.counted(node, branch)
                every = self._values.constant(count.every) if count is not None else None
                known = total is not None and isinstance(every, int) and every > 0
                total = total.times(Amount(Fraction(1, every))) if total is not None and known else None
            elif isinstance(node, ast.IfExp | ast.ExceptHandler | ast.BoolOp):
                return None
        return total
