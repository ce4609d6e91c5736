"""Accumulation that all-reduces gradients after every batch.

What it finds: Accumulation over n batches of a `DistributedDataParallel` model, without `no_sync()`.

Why it matters: `backward()` averages all gradients between the processes. Only the average at the last of the
n batches is needed.

Fix: Run forward and backward of the other batches under `no_sync()`.

    with contextlib.nullcontext() if is_last else model.no_sync():
        loss = criterion(model(x), y) / n
        loss.backward()

When to ignore: The network is so fast that the all-reduce is hidden behind the backward pass.

Automatic fix: None. The last of the n batches must be known first.
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
            message = f"backward() all-reduces gradients after each of {every} batches; only the last needs it"
            yield Found(each.node, message)


def _syncs_by_choice(window: Window) -> bool:
    names = {name_of(each) for each in window.turn.nodes if isinstance(each, ast.Attribute | ast.Name)}
    return any(word in each for each in names for word in _SYNCS)


RULE = SourceRule(
    code="H411",
    fix="run the batches before the last one under model.no_sync()",
    technique="accumulation",
    check=check,
)
