"""Schedules of a file that surely are torch's: what each is made with, and in which loops it steps."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

from hasten.doctor.reading.names.amounts import Amount, Amounts
from hasten.doctor.reading.names.constants import Values
from hasten.doctor.reading.names.name_resolution import Names
from hasten.doctor.reading.steps.accumulation_windows import Windows
from hasten.doctor.reading.steps.optimizer_events import Action, Event, Updates
from hasten.doctor.reading.steps.training_steps import Loop

_LIBRARY = "torch.optim.lr_scheduler."


@dataclass(frozen=True, slots=True, eq=False)
class Schedule:
    """kind: such as "OneCycleLR". event: where it steps. loops: around that, the outermost first, that it is made
    outside of. around: loops and conditions there."""

    kind: str
    making: ast.Call
    event: Event
    loops: tuple[Loop, ...]
    around: tuple[tuple[ast.AST, str], ...]

    @property
    def call(self) -> ast.Call:
        assert isinstance(self.event.node, ast.Call)
        return self.event.node


class Schedules:
    """Of one file."""

    def __init__(self, names: Names, values: Values, updates: Updates, windows: Windows) -> None:
        self._names, self._values, self._updates, self._windows = names, values, updates, windows
        self.amounts = Amounts(names, values)

    def stepped(self, kind: str) -> Iterator[Schedule]:
        """Where one steps, in a loop that trains: once for each place."""
        widest = dict[ast.AST, Schedule]()
        for turn in self._updates.turns:
            for event in turn.of(Action.SCHEDULE):
                making = self._names.making(event.target)
                if making is None or self._names.qualified(making.func) != _LIBRARY + kind or making in turn.nodes:
                    continue
                if not isinstance(turn.node, Loop):
                    continue
                inner = tuple(node for node, _ in event.around if isinstance(node, Loop))
                found = Schedule(kind, making, event, (turn.node, *inner), event.around)
                known = widest.get(event.node)
                if known is None or len(known.loops) < len(found.loops):
                    widest[event.node] = found
        yield from widest.values()

    def steps_elsewhere(self, schedule: Schedule) -> bool:
        """Whether the file steps it at several places."""
        places = {
            event.node
            for turn in self._updates.turns
            for event in turn.of(Action.SCHEDULE)
            if self._names.making(event.target) is schedule.making
        }
        return len(places) > 1

    def amount(self, schedule: Schedule) -> Amount | None:
        """How often it steps in all; None where that is not certain."""
        total = Amount(Fraction(1))
        for each in schedule.loops:
            turns = self.amounts.turns(each)
            if turns is None:
                return None
            total = total.times(turns)
        for node, branch in schedule.around:
            if isinstance(node, ast.If):
                count = self._windows.counted(node, branch)
                every = self._values.constant(count.every) if count is not None else None
                if not isinstance(every, int) or every < 1:
                    return None
                total = total.times(Amount(Fraction(1, every)))
            elif isinstance(node, ast.IfExp | ast.ExceptHandler | ast.match_case | ast.BoolOp):
                return None
        return total
