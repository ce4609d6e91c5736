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
from hasten.doctor.reading.steps.optimizer_events import Action, Event, Turn, Updates

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
