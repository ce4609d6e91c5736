"""Accumulation windows: several batches whose gradients are added up before the optimizer steps."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from hasten.doctor.reading.names.argument_values import Values
from hasten.doctor.reading.names.name_resolution import Names
from hasten.doctor.reading.names.scopes import Kind, Loop
from hasten.doctor.reading.steps.optimizer_events import Action, Event, Turn, Updates


@dataclass(frozen=True, slots=True)
class Count:
    """`(index + 1) % every == 0`. index: None of a counter that is reset. is_all: whether only the count closes a
    window."""

    every: ast.expr
    index: ast.expr | None
    is_all: bool = True


@dataclass(frozen=True, slots=True, eq=False)
class Window:
    """backwards: whose gradients are added up before the update. condition: under which the update comes."""

    turn: Turn
    update: Event
    backwards: tuple[Event, ...]
    count: Count
    condition: ast.If

    @property
    def every(self) -> ast.expr:
        """The number of batches."""
        return self.count.every


class Windows:
    def __init__(self, names: Names, values: Values, updates: Updates) -> None:
        self._names, self._values, self._updates = names, values, updates

    @cached_property
    def all(self) -> list[Window]:
        found = [next(self._of(turn, update), None) for turn, update in self._updates.updating]
        return [window for window in found if window is not None]

    def _of(self, turn: Turn, update: Event) -> Iterator[Window]:
        backwards = tuple(each for each in turn.of(Action.BACKWARD) if each.may_meet(update))
        for node, branch in update.around:
            count = self.counted(node, branch)
            inside = any((node, branch) in each.around for each in backwards)
            if isinstance(node, ast.If) and count is not None and backwards and not inside:
                window = Window(turn, update, backwards, count, node)
                if self._values.constant(window.every) != 1 and self._adds_up(window, (node, branch)):
                    yield window

    def _adds_up(self, window: Window, place: tuple[ast.AST, str]) -> bool:
        """Whether nothing else updates, or clears the gradients, between the updates."""
        for each in window.turn.of(Action.UPDATE, Action.CLEAR, Action.TOUCH):
            if place not in each.around and each.may_meet(window.update):
                other = self._updates.optimizers.is_distinct(each.target, window.update.target)
                harmless = other or any(self.counted(*part) for part in each.around)
                if each.action is Action.UPDATE or not harmless:
                    return False
        return True

    def counted(self, condition: ast.AST, branch: str) -> Count | None:
        """Where the branch runs in every n-th turn."""
        if not isinstance(condition, ast.If):
            return None
        found = self._in_test(condition.test, is_true=branch == "body")
        return found or (_by_counter(condition) if branch == "body" else None)

    def _in_test(self, test: ast.expr, *, is_true: bool) -> Count | None:
        """Of `test`, or of `not test`."""
        followed = self._names.followed(test) if isinstance(test, ast.Name) else test
        match followed:
            case ast.Compare(ast.BinOp(index, ast.Mod(), every), [ast.Eq() | ast.NotEq() as operator], [_]):
                return Count(every, index) if isinstance(operator, ast.Eq) is is_true else None
            case ast.BinOp(index, ast.Mod(), every):
                return None if is_true or isinstance(index, ast.Constant) else Count(every, index)
            case ast.UnaryOp(ast.Not(), operand):
                return self._in_test(operand, is_true=not is_true)
            case ast.BoolOp(operator, values):
                counts = [each for each in (self._in_test(value, is_true=is_true) for value in values) if each]
                widens = isinstance(operator, ast.Or) is is_true
                return Count(counts[0].every, counts[0].index, counts[0].is_all and not widens) if counts else None
            case _:
                return None

    def is_index_of(self, count: Count, loop: Loop) -> bool:
        """Whether it counts the turns of this loop alone, and begins again with it."""
        named = ast.walk(count.index) if count.index is not None else []
        bindings = [each for name in named if isinstance(name, ast.Name) for each in self._names.bindings(name)]
        return any(each.kind is Kind.ITEM and each.node is loop for each in bindings)


def _by_counter(condition: ast.If) -> Count | None:
    """`if count == every: …; count = 0`, of a counter that goes up by one."""
    match condition.test:
        case ast.Compare(ast.Name() | ast.Attribute() as counter, [ast.Eq() | ast.GtE()], [every]):
            reset = f"{ast.unparse(counter)} = 0"
        case _:
            return None
    assigned = [each for each in ast.walk(condition) if isinstance(each, ast.Assign)]
    is_reset = any(ast.unparse(each) == reset for each in assigned) and not isinstance(every, ast.Call)
    return Count(every, None) if is_reset else None
