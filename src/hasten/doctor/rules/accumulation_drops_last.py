"""Accumulation that never steps for the last, incomplete window.

What it finds: A loop over a loader that steps the optimizer only every n-th batch, with nothing that steps for the
batches behind the last full window.

Why it costs: Where the number of batches is no multiple of n, the gradients of the last ones are not applied with their
epoch: they are cleared, or added to the first window of the next epoch.

When to ignore it: Where the number of batches is a multiple of n.

Fix: Step at the last batch too: `if (i + 1) % n == 0 or i + 1 == len(loader):`.

Safety: Nothing is changed by itself: it changes what is learned.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hasten.doctor.reading.names.scopes import Loop, iterated
from hasten.doctor.reading.source_code import Code
from hasten.doctor.reading.steps.accumulation_windows import Window
from hasten.doctor.reading.steps.optimizer_events import Action
from hasten.doctor.rule import Found, SourceRule
from hasten.facts.finding import Severity

_ENDLESS = ("cycle", "count", "islice", "infinite", "range", "repeat", "forever", "endless")


def check(code: Code) -> Iterator[Found]:
    told = set[ast.AST]()
    for window in code.windows.all:
        if window.condition is None or window.condition in told or not _ends_within_window(code, window):
            continue
        if not _steps_behind(code, window):
            told.add(window.condition)
            every = ast.unparse(window.every)
            yield Found(
                window.condition, f"the batches behind the last full window of {every} get no step of their own"
            )


def _ends_within_window(code: Code, window: Window) -> bool:
    """Whether only the count closes a window, and the count begins again with each pass through the loader."""
    loop, count = window.turn.node, window.count
    if count is None or not count.is_all or not isinstance(loop, ast.For | ast.AsyncFor):
        return False
    if not code.windows.is_index_of(count, loop):
        return False
    words = {each.lower() for each in _called(loop.iter) | _called(code.names.followed(iterated(loop.iter)))}
    return not any(word in each for each in words for word in _ENDLESS)


def _called(node: ast.AST | None) -> set[str]:
    """What an expression calls, and names."""
    parts = list(ast.walk(node)) if node is not None else []
    return {each.attr for each in parts if isinstance(each, ast.Attribute)} | {
        each.id for each in parts if isinstance(each, ast.Name)
    }


def _steps_behind(code: Code, window: Window) -> bool:
    """Whether something steps behind the loop, in its function or in the epoch around it."""
    for body in _behind(code, window.turn.node):
        for event in code.updates.events_of(code.training.run(body)):
            in_loop = any(isinstance(each, Loop) for each, _ in event.around)
            other = code.updates.optimizers.is_distinct(event.target, window.update.target)
            if event.action in {Action.UPDATE, Action.TOUCH} and not in_loop and not other:
                return True
    return False


def _behind(code: Code, node: ast.AST) -> Iterator[list[ast.stmt]]:
    """The statements that follow it, block by block, to the end of its function."""
    inside = node
    for each in code.names.around(node):
        for field in ("body", "orelse", "finalbody"):
            block = getattr(each, field, None)
            if isinstance(block, list) and inside in block:
                yield block[block.index(inside) + 1 :]
        if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef):
            for call in code.names.calls_of(each):
                statement = code.names.enclosing(call, ast.stmt)
                if statement is not None and each not in code.names.around(call):
                    yield from _behind_in_block(code, statement)
            return
        inside = each
    if isinstance(node, ast.For | ast.AsyncFor) and node.orelse:
        yield node.orelse


def _behind_in_block(code: Code, statement: ast.AST) -> Iterator[list[ast.stmt]]:
    block = getattr(code.names.parents[statement], "body", [])
    if isinstance(block, list) and statement in block:
        yield block[block.index(statement) + 1 :]


RULE = SourceRule(
    code="H410",
    name="accumulation_drops_last",
    severity=Severity.WRONG,
    fix="step at the last batch too",
    technique="accumulation",
    check=check,
)
