"""Gradients never cleared, or cleared before the optimizer uses them.

What it finds: A training step without `zero_grad()`, or with `zero_grad()` between `backward()` and `step()`.

Why it matters: `backward()` adds to existing gradients. Without `zero_grad()` each step uses the sum over all
batches so far. With `zero_grad()` before `step()` the optimizer finds no gradients, and the model does not
train.

Fix: Call `zero_grad()` once for each `step()`, before `backward()` or after `step()`.

    optimizer.zero_grad()
    loss = criterion(model(x), y)
    loss.backward()
    optimizer.step()

When to ignore: The optimizer is meant to use the sum over all batches.

Automatic fix: None. It changes training, and only you know the right place.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hasten.doctor.reading.names.scopes import Function
from hasten.doctor.reading.objects.optimizer_roles import Role, name_of
from hasten.doctor.reading.steps.optimizer_events import Action, Event, Turn
from hasten.doctor.rule import Code, Found, Severity, SourceRule


def check(code: Code) -> Iterator[Found]:
    seen = set[tuple[ast.AST, str]]()
    for turn, update in code.updates.updating:
        if update.target is None or not code.updates.optimizers.is_in_sight(update.target):
            continue
        optimizer = ast.unparse(update.target)
        lost = _cleared_too_early(code, turn, update)
        if lost is not None:
            yield Found(lost.node, f"gradients are cleared before {optimizer}.step() uses them", fix=_LATER)
        elif (turn.node, optimizer) not in seen and _is_never_cleared(code, turn, update):
            seen.add((turn.node, optimizer))
            message = f"nothing clears the gradients that {optimizer}.step() uses: every batch adds to them"
            yield Found(update.node, message)


_LATER = "call zero_grad() before backward() or after step()"


def _cleared_too_early(code: Code, turn: Turn, update: Event) -> Event | None:
    """What clears them with nothing behind it that computes new ones, and with a backward pass before it."""
    others = (Action.BACKWARD, Action.REWRITE, Action.TOUCH, Action.CLEAR, Action.UPDATE)
    cleared = None
    for each in reversed(turn.before(update, *others)):
        if not each.may_meet(update):
            continue
        if cleared is None and each.action is Action.CLEAR:
            cleared = each if _surely_clears(code, each, update) and each.surely_before(update) else None
        elif each.action is Action.BACKWARD:
            return cleared
        elif each.action in {Action.REWRITE, Action.TOUCH} or (cleared is not None and each.action is Action.UPDATE):
            return None
    return None


def _surely_clears(code: Code, clear: Event, update: Event) -> bool:
    """By the optimizer, or by the module whose parameters it is given."""
    if clear.target is None or update.target is None:
        return False
    optimizers = code.updates.optimizers
    same = optimizers.is_same(clear.target, update.target)
    return same or ast.unparse(clear.target) in optimizers.modules_of(update.target)


def _is_never_cleared(code: Code, turn: Turn, update: Event) -> bool:
    assert update.target is not None
    if any(_may_clear(code, each, update.target) for each in turn.events):
        return False
    if isinstance(turn.node, Function) and not _has_it_alone(code, turn.node, update.target):
        return False
    return not _is_made_in(code, turn, update.target) and not _has_closure(code, update)


def _may_clear(code: Code, event: Event, optimizer: ast.expr) -> bool:
    if event.action not in {Action.CLEAR, Action.REWRITE, Action.TOUCH}:
        return False
    optimizers = code.updates.optimizers
    if event.target is None:
        return True
    is_of_module = event.action is not Action.TOUCH and optimizers.role(event.target) is not Role.OPTIMIZER
    return is_of_module or not optimizers.is_distinct(event.target, optimizer)


def _has_it_alone(code: Code, function: Function, optimizer: ast.expr) -> bool:
    """Whether nothing outside the function can clear its gradients: a framework calls it, or the file makes the
    optimizer, and nothing in the file clears it."""
    others = [call.func.value for call in code.methods("zero_grad") if isinstance(call.func, ast.Attribute)]
    if any(not code.updates.optimizers.is_distinct(each, optimizer) for each in others):
        return False
    made = code.updates.optimizers.made(optimizer).startswith("torch.optim.")
    return made or function.name == "training_step"


def _is_made_in(code: Code, turn: Turn, optimizer: ast.expr) -> bool:
    """Whether each turn has one of its own; Lightning's `self.optimizers()` hands out the same in each."""
    bindings = code.names.bindings(optimizer) if isinstance(optimizer, ast.Name) else []
    makings = {code.names.making(optimizer), *(each.source for each in bindings)} & turn.nodes
    return any(isinstance(each, ast.Call) and name_of(each.func) != "optimizers" for each in makings)


def _has_closure(code: Code, update: Event) -> bool:
    """Whether a function that is not known computes its gradients."""
    given = update.node.args if isinstance(update.node, ast.Call) else []
    return any(each is not update.target and code.names.function_named(each) is None for each in given)


RULE = SourceRule(
    code="H401",
    severity=Severity.WRONG,
    fix="call zero_grad() once for each step()",
    check=check,
)
