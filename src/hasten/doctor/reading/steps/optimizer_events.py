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
_MAY_TOUCH = frozenset(
    {"zero", "clear", "reset", "grad", "grads", "gradient", "gradients", "optimize", "optim", "optimizer", "optimizers",
     "update", "step", "train", "training", "run", "call", "callback", "callbacks", "hook", "hooks", "on", "before",
     "after", "prepare", "start", "begin", "end", "notify", "trigger", "event", "fit", "learn", "apply"}
)  # fmt: skip
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
    """Of a loop, or of a function that a framework calls for each batch. events: in order."""

    def __init__(self, node: Loop | Function, ran: list[Ran], updates: Updates) -> None:
        self.node = node
        self.ran = ran
        self.nodes = {each.node for each in ran}
        self.events = [*updates.events_of(ran)]

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
        found = dict[ast.AST, Turn]()
        for step in self._training.steps:
            for node in (step.node, *step.epochs):
                if node not in found:
                    found[node] = Turn(node, self._training.run(node.body), self)
        return [*found.values()]

    @cached_property
    def updating(self) -> list[tuple[Turn, Event]]:
        """Each update of an optimizer, with the nearest turn around it that computes gradients."""
        nearest = dict[ast.AST, tuple[Turn, Event]]()
        for turn in self.turns:
            if not turn.of(Action.BACKWARD):
                continue
            for event in turn.of(Action.UPDATE):
                known = nearest.get(event.node)
                if known is None or len(turn.ran) < len(known[0].ran):
                    nearest[event.node] = turn, event
        return [*nearest.values()]

    def events_of(self, ran: list[Ran]) -> Iterator[Event]:
        inside = set[Function]()  # methods of optimizers and schedulers of the file: each call is one event
        for each in ran:
            if inside and any(node in inside for node, _ in each.around):
                continue
            action, target = self._action(each.node)
            if action is None:
                continue
            conditions = frozenset(pair for pair in each.around if isinstance(pair[0], _CONDITIONS))
            yield Event(action, each.node, target, conditions, each.around)
            if action in {Action.UPDATE, Action.SCHEDULE, Action.CLEAR} and isinstance(each.node, ast.Call):
                own = self._names.function(each.node)
                inside |= {own} if own is not None and target is not None else set()

    def _action(self, node: ast.AST) -> tuple[Action | None, ast.expr | None]:
        match node:
            case ast.Call(ast.Attribute()):
                return self._of_method(node, node.func)
            case ast.Call():
                return self._of_function(node)
            case ast.Assign(targets) | ast.Delete(targets) if any(_is_gradient(each) for each in targets):
                drops = isinstance(node, ast.Delete) or is_none(node.value)
                return (Action.CLEAR if drops else Action.REWRITE), None
            case ast.AugAssign(target) if _is_gradient(target):  # clipping and scaling by hand
                return Action.REWRITE, None
            case _:
                return None, None

    def _of_method(self, call: ast.Call, func: ast.expr) -> tuple[Action | None, ast.expr | None]:
        assert isinstance(func, ast.Attribute)
        base, name = func.value, func.attr
        first = call.args[0] if call.args else None
        if name in {"backward", "manual_backward"}:
            return Action.BACKWARD, None
        if name == "step":
            if (
                first is not None
                and self.optimizers.role(base) is not Role.OPTIMIZER
                and self.optimizers.role(first) is Role.OPTIMIZER
            ):
                return Action.UPDATE, first
            role = self.optimizers.role(base)
            if role in _STEPPED:
                return _STEPPED[role], base
            return self._of_function(call)
        if name == "zero_grad":
            return Action.CLEAR, base
        if name == "unscale_":
            return Action.UNSCALE, first
        if name in _SETTING_GRADIENTS and any(_is_gradient(each) for each in (base, getattr(base, "value", base))):
            return (Action.CLEAR if name == "zero_" else Action.REWRITE), None
        return self._of_function(call)

    def _of_function(self, call: ast.Call) -> tuple[Action | None, ast.expr | None]:
        if self._names.qualified(call.func) in _CLIPS:
            return Action.CLIP, call.args[0] if call.args else None
        if self._names.function(call) is not None:
            return None, None
        words = words_of(name_of(call.func))
        gives = next((each for each in _given(call) if self.optimizers.role(each) is Role.OPTIMIZER), None)
        if words & {"grad", "grads", "gradient", "gradients"} and words & {"zero", "clear", "reset"}:
            return Action.CLEAR, None
        if name_of(call.func) == "setattr" or ("backward" in words and "sync" not in words):
            return Action.TOUCH, None
        if gives is not None and not words & _LEAVE_GRADIENTS:
            return Action.TOUCH, gives
        return (Action.TOUCH, None) if words & _MAY_TOUCH and self._is_inherited(call) else (None, None)

    def _is_inherited(self, call: ast.Call) -> bool:
        """`self.method()` or `super().method()` of a class that another file, not torch, has the rest of."""
        if not isinstance(call.func, ast.Attribute):
            return False
        base = call.func.value
        own = isinstance(base, ast.Name) and base.id == "self"
        if not own and not (isinstance(base, ast.Call) and name_of(base.func) == "super"):
            return False
        owner = self._names.enclosing(call, ast.ClassDef)
        if not isinstance(owner, ast.ClassDef) or (own and self._names.bindings_of(call.func)):
            return False
        known = ("torch.", "builtins.", "lightning.", "pytorch_lightning.", "abc.")
        return any(not (self._names.qualified(each) or "").startswith(known) for each in owner.bases)


def _given(call: ast.Call) -> list[ast.expr]:
    named = (ast.Name, ast.Attribute, ast.Subscript)
    return [each for each in (*call.args, *(each.value for each in call.keywords)) if isinstance(each, named)]


def _is_gradient(node: ast.AST) -> bool:
    """`p.grad`, `p.grad.data`."""
    if isinstance(node, ast.Attribute) and node.attr == "data":
        node = node.value
    return isinstance(node, ast.Attribute) and node.attr in {"grad", "main_grad"}
