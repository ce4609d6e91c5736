"""Accumulation that never steps for the last batches.

What it finds: A loop that steps the optimizer every n-th batch, and never for the batches after the last
multiple of n.

Why it matters: Their gradients are cleared, or added to the first gradients of the next epoch.

Fix: Step at the last batch too.

    if (i + 1) % n == 0 or i + 1 == len(loader):
        optimizer.step()
        optimizer.zero_grad()

When to ignore: The number of batches is a multiple of n.

Automatic fix: None. It changes training.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hasten.doctor.reading.names.scopes import iterated
from hasten.doctor.reading.objects.optimizer_roles import name_of
from hasten.doctor.reading.steps.accumulation_windows import Window
from hasten.doctor.reading.steps.optimizer_events import Action
from hasten.doctor.rule import Code, Found, Severity, SourceRule

_ENDLESS = ("cycle", "count", "islice", "infinite", "range", "repeat", "forever", "endless")


def check(code: Code) -> Iterator[Found]:
    for window in code.windows.all:
        if _ends_within_window(code, window) and not _steps_after(code, window):
            every = ast.unparse(window.every)
            yield Found(window.condition, f"no optimizer step follows the batches after the last multiple of {every}")


def _ends_within_window(code: Code, window: Window) -> bool:
    """Whether only the count closes a window, and the count begins again with each pass through the loader."""
    loop, count = window.turn.node, window.count
    if not count.is_all or not isinstance(loop, ast.For):
        return False
    if not code.windows.is_index_of(count, loop):
        return False
    followed = code.names.followed(iterated(loop.iter)) or loop.iter
    names = {name_of(each).lower() for part in (loop.iter, followed) for each in ast.walk(part)}
    return not any(word in name for name in names for word in _ENDLESS)


def _steps_after(code: Code, window: Window) -> bool:
    """Whether something steps after the loop, in its function or in the loop over epochs."""
    loop, optimizers = window.turn.node, code.updates.optimizers
    around = code.names.enclosing(loop, ast.FunctionDef) or code.tree
    events = [event for turn in code.updates.turns if loop in turn.nodes for event in turn.events]
    for event in (*events, *code.updates.events_of(code.training.run(around))):
        in_loop = any(each is loop for each, _ in event.around)
        other = optimizers.is_distinct(event.target, window.update.target)
        if event.action in {Action.UPDATE, Action.TOUCH} and not in_loop and not other:
            return True
    return False


RULE = SourceRule(
    code="H410",
    severity=Severity.WRONG,
    fix="also step at the last batch: or i + 1 == len(loader)",
    technique="accumulation",
    check=check,
)
