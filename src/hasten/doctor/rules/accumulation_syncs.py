"""Accumulation that averages gradients between processes after every batch.

What it finds: A model in `DistributedDataParallel`, trained by a loop that steps the optimizer only every n-th batch,
without `no_sync()`.

Why it costs: `backward()` averages all gradients between the processes. Only the average before the optimizer's step is
needed: the others cost communication and change nothing.

When to ignore it: Where the model does not fit `no_sync()`: it keeps the gradients of its own process until the last
batch of the window.

Fix: Run forward and backward of all batches but the last of a window inside `with model.no_sync():`.

Safety: Nothing is changed by itself: the last batch of a window must be known first.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hasten.doctor.reading.objects.optimizer_roles import name_of
from hasten.doctor.reading.steps.accumulation_windows import Window
from hasten.doctor.rule import Code, Found, Severity, SourceRule

_SYNCS = ("no_sync", "grad_sync", "gradient_sync", "requires_all_reduce")
_WRAPPER = "torch.nn.parallel.DistributedDataParallel"


def check(code: Code) -> Iterator[Found]:
    wrapped = [*code.calls_to(_WRAPPER)]
    if not wrapped:
        return
    for window in code.windows.all:
        if _syncs_by_choice(window) or not _is_wrapped(code, window, wrapped):
            continue
        every = ast.unparse(window.every)
        for each in window.backwards:
            yield Found(each.node, f"gradients are averaged between processes after each of {every} batches")


def _syncs_by_choice(window: Window) -> bool:
    names = {name_of(each) for each in window.turn.nodes if isinstance(each, ast.Attribute | ast.Name)}
    return any(word in each for each in names for word in _SYNCS)


def _is_wrapped(code: Code, window: Window, wrapped: list[ast.Call]) -> bool:
    """Whether the model that the turn calls is in it; where that cannot be seen, it is taken to be."""
    called = [each.func for each in window.turn.nodes if isinstance(each, ast.Call)]
    models = [each for each in called if code.tensors.is_model(each) or code.names.making(each) in wrapped]
    return not models or any(_may_be(code, each, wrapped) for each in models)


def _may_be(code: Code, model: ast.expr, wrapped: list[ast.Call]) -> bool:
    making = code.names.making(model)
    if making is not None:
        return making in wrapped
    bindings = code.names.bindings(model) if isinstance(model, ast.Name) else []
    sources = [code.names.making(each.source) for each in bindings if each.source is not None]
    return not sources or any(each in wrapped for each in sources)


RULE = SourceRule(
    code="H411",
    severity=Severity.SLOW,
    fix="compute all batches but the last of a window inside model.no_sync()",
    technique="accumulation",
    check=check,
)
