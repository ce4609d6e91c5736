"""scheduler.step() before optimizer.step().

What it finds: `scheduler.step()` before `optimizer.step()` in the same training step or the same epoch.

Why it matters: The first learning rate of the schedule is skipped. PyTorch warns about it once.

Fix: Call `scheduler.step()` after `optimizer.step()`, or at the end of the epoch.

    loss.backward()
    optimizer.step()
    scheduler.step()

When to ignore: The learning rate is meant to change before the first step.

Automatic fix: None. It changes training.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hasten.doctor.reading.steps.optimizer_events import Action, Event, Turn
from hasten.doctor.rule import Code, Found, Severity, SourceRule


def check(code: Code) -> Iterator[Found]:
    for turn in code.updates.turns:
        for event in turn.of(Action.SCHEDULE):
            update = _first_update_after(code, turn, event) if _is_plain(code, event) else None
            if update is not None and event.conditions <= update.conditions:
                assert event.target is not None
                scheduler, optimizer = ast.unparse(event.target), ast.unparse(update.target or event.target)
                yield Found(event.node, f"{scheduler}.step() before {optimizer}.step() skips the first learning rate")


def _is_plain(code: Code, event: Event) -> bool:
    """Whether it counts for itself, as one of torch does: not one that is given the epoch, or that returns a value."""
    call = event.node
    assert isinstance(call, ast.Call)
    assert event.target is not None
    if call.args or call.keywords or not isinstance(code.names.parents[call], ast.Expr):
        return False
    return code.updates.optimizers.is_in_sight(event.target)


def _first_update_after(code: Code, turn: Turn, event: Event) -> Event | None:
    """Of its own optimizer, where nothing in this turn may update that before it."""
    optimizers = code.updates.optimizers
    own = optimizers.scheduled(event.target) if event.target is not None else None
    for each in turn.before(event, Action.UPDATE, Action.TOUCH):
        if each.may_meet(event) and not optimizers.is_distinct(each.target, own):
            return None
    updates = [each for each in turn.after(event, Action.UPDATE) if each.may_meet(event)]
    later = [each for each in updates if not optimizers.is_distinct(each.target, own)]
    several = any(optimizers.is_distinct(each.target, other.target) for each in later for other in updates)
    return later[0] if later and not (own is None and several) else None


RULE = SourceRule(
    code="H402",
    severity=Severity.WRONG,
    fix="call it after the optimizer's step()",
    technique="schedule",
    check=check,
)
