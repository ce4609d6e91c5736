"""What a turn of a loop does to its optimizers, schedulers and gradients: in which order, under which conditions.

A call of unknown code may do anything to the optimizer that it is given, so it is an action too.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, auto
from functools import cached_property

from hasten.doctor.reading.names.name_resolution import Names
from hasten.doctor.reading.names.scopes import Function, Loop
from hasten.doctor.reading.names.value_origins import is_none
from hasten.doctor.reading.objects.optimizer_roles import Optimizers, Role, name_of, words_of
from hasten.doctor.reading.steps.training_steps import Ran, Training

_CONDITIONS = (ast.If, ast.IfExp, ast.ExceptHandler, ast.BoolOp, ast.For, ast.While)
_CLIPS = frozenset(f"torch.nn.utils.{name}" for name in ("clip_grad_norm_", "clip_grad_value_", "clip_grad_norm"))
_LEAVE_GRADIENTS = frozenset(
    {"clip", "lr", "rate", "learning", "save", "load", "checkpoint", "print", "log", "isinstance", "len", "id", "type",
     "unscale", "append", "hasattr", "getattr", "state", "ema", "scheduler", "dict", "prepare", "get", "enumerate"}
)  # fmt: skip
_NAMED = (ast.Name, ast.Attribute, ast.Subscript)
_SETTING_GRADIENTS = frozenset({"zero_", "fill_", "copy_", "mul_", "div_", "add_", "sub_", "set_", "detach_", "data"})


class Action(Enum):
    """TOUCH: unknown code gets the optimizer, or belongs to the same object, and may update or clear it."""

    BACKWARD = auto()
    UPDATE = auto()  # an optimizer's step
    SCHEDULE = auto()  # a scheduler's step
    CLEAR = auto()
    REWRITE = auto()  # of gradients, by hand
    CLIP = auto()
    UNSCALE = auto()
    TOUCH = auto()


_STEPPED = {Role.OPTIMIZER: Action.UPDATE, Role.SCHEDULER: Action.SCHEDULE}


@dataclass(frozen=True, slots=True, eq=False)
class Event:
    """target: the optimizer, scheduler or module that it happens to; None of all, or of one that is not known.
    conditions: branches and inner loops that it lies in."""

    action: Action
    node: ast.AST
    target: ast.expr | None
    conditions: frozenset[tuple[ast.AST, str]]
    around: tuple[tuple[ast.AST, str], ...]

    def surely_before(self, later: Event) -> bool:
        """Of one that stands before it: whether it runs wherever the later one does."""
        return self.conditions <= later.conditions

    def may_meet(self, other: Event) -> bool:
        """Whether one turn may run both."""
        branches = {node: branch for node, branch in self.conditions if not isinstance(node, Loop)}
        return all(branches.get(node, branch) == branch for node, branch in other.conditions)


class Turn:
    """One turn of a loop, or one call of a function that a framework calls for each batch. events: in order."""

    def __init__(self, node: Loop | Function, ran: list[Ran], events: list[Event]) -> None:
        self.node = node
        self.nodes = {each.node for each in ran}
        self.events = events

    def of(self, *actions: Action) -> list[Event]:
        return [each for each in self.events if each.action in actions]

    def before(self, event: Event, *actions: Action) -> list[Event]:
        return [each for each in self.events[: self.events.index(event)] if each.action in actions]

    def after(self, event: Event, *actions: Action) -> list[Event]:
        return [each for each in self.events[self.events.index(event) + 1 :] if each.action in actions]


class Updates:
    def __init__(self, names: Names, training: Training, optimizers: Optimizers) -> None:
        self._names, self._training, self.optimizers = names, training, optimizers

    @cached_property
    def turns(self) -> list[Turn]:
        """Of every step, and of the loops around one."""
        steps = self._training.steps
        nodes = dict.fromkeys(node for step in steps for node in (step.node, *step.epochs))
        ran = {node: self._training.run(node) for node in nodes}
        return [Turn(node, each, [*self.events_of(each)]) for node, each in ran.items()]

    @cached_property
    def updating(self) -> list[tuple[Turn, Event]]:
        """Each update of an optimizer, with the nearest turn around it that computes gradients."""
        nearest = dict[ast.AST, tuple[Turn, Event]]()
        for turn in sorted(self.turns, key=lambda each: -len(each.nodes)):
            if turn.of(Action.BACKWARD):
                nearest |= {event.node: (turn, event) for event in turn.of(Action.UPDATE)}
        return [*nearest.values()]

    def events_of(self, ran: list[Ran]) -> Iterator[Event]:
        for each in ran:
            action, target = self._action(each.node)
            if action is not None:
                conditions = frozenset(pair for pair in each.around if isinstance(pair[0], _CONDITIONS))
                yield Event(action, each.node, target, conditions, each.around)

    def _action(self, node: ast.AST) -> tuple[Action | None, ast.expr | None]:
        match node:
            case ast.Call(ast.Attribute(base, name)):
                return self._of_method(node, base, name)
            case ast.Call():
                return self._of_function(node)
            case ast.Assign(targets) | ast.Delete(targets) if any(_is_gradient(each) for each in targets):
                drops = isinstance(node, ast.Delete) or is_none(node.value)
                return (Action.CLEAR if drops else Action.REWRITE), None
            case ast.AugAssign(target) if _is_gradient(target):  # clipping and scaling by hand
                return Action.REWRITE, None
            case _:
                return None, None

    def _of_method(self, call: ast.Call, base: ast.expr, name: str) -> tuple[Action | None, ast.expr | None]:
        first = call.args[0] if call.args else None
        if name in {"backward", "manual_backward"}:
            return Action.BACKWARD, None
        if name == "step":
            role = self.optimizers.role(base)
            if first is not None and role is not Role.OPTIMIZER and self.optimizers.role(first) is Role.OPTIMIZER:
                return Action.UPDATE, first
            return (_STEPPED[role], base) if role in _STEPPED else self._of_function(call)
        if name == "zero_grad":
            return Action.CLEAR, base
        if name == "unscale_":
            return Action.UNSCALE, first
        if name in _SETTING_GRADIENTS and _is_gradient(base):
            return (Action.CLEAR if name == "zero_" else Action.REWRITE), None
        return self._of_function(call)

    def _of_function(self, call: ast.Call) -> tuple[Action | None, ast.expr | None]:
        if self._names.qualified(call.func) in _CLIPS:
            return Action.CLIP, call.args[0] if call.args else None
        if self._names.function(call) is not None:
            return None, None
        words = words_of(name_of(call.func))
        given = [each for each in (*call.args, *(each.value for each in call.keywords)) if isinstance(each, _NAMED)]
        gives = next((each for each in given if self.optimizers.role(each) is Role.OPTIMIZER), None)
        if words & {"grad", "grads", "gradient", "gradients"} and words & {"zero", "clear", "reset"}:
            return Action.CLEAR, None
        if "backward" in words and "sync" not in words:
            return Action.TOUCH, None
        touches = gives is not None and not words & _LEAVE_GRADIENTS
        return (Action.TOUCH, gives) if touches else (None, None)


def _is_gradient(node: ast.AST) -> bool:
    """`p.grad`, `p.grad.data`."""
    if isinstance(node, ast.Attribute) and node.attr == "data":
        node = node.value
    return isinstance(node, ast.Attribute) and node.attr in {"grad", "main_grad"}
