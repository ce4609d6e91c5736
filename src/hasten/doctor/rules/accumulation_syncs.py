"""Accumulation that averages gradients between processes after every batch.

What it finds: Accumulation over n batches of a model in `DistributedDataParallel`, without `no_sync()`.

Why it costs: `backward()` averages all gradients between the processes; only the last average of a window is needed.

When to ignore it: Where memory is short: under `no_sync()` each process keeps its own gradients meanwhile.

Fix: Run forward and backward of all batches but the last of a window inside `with model.no_sync():`.

Safety: Nothing is changed by itself: the last batch of a window must be known first.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hasten.doctor.reading.objects.optimizer_roles import name_of
from hasten.doctor.reading.steps.accumulation_windows import Window
from hasten.doctor.rule import Code, Found, SourceRule

_SYNCS = ("no_sync", "grad_sync", "gradient_sync", "requires_all_reduce")


def check(code: Code) -> Iterator[Found]:
    if not any(code.calls_to("torch.nn.parallel.DistributedDataParallel")):
        return
    for window in code.windows.all:
        if _syncs_by_choice(window):
            continue
        every = ast.unparse(window.every)
        for each in window.backwards:
            yield Found(each.node, f"gradients are averaged between processes after each of {every} batches")


def _syncs_by_choice(window: Window) -> bool:
    names = {name_of(each) for each in window.turn.nodes if isinstance(each, ast.Attribute | ast.Name)}
    return any(word in each for each in names for word in _SYNCS)


RULE = SourceRule(
    code="H411",
    fix="compute all batches but the last of a window inside model.no_sync()",
    technique="accumulation",
    check=check,
)
