"""Training DataLoader without shuffle.

What it finds: A training DataLoader of a map-style data set, without `shuffle`, `sampler` or `batch_sampler`.

Why it matters: Every epoch has the same batches in the same order. If the data is stored class by class, each
batch holds few classes. That biases the gradients and the statistics of batch norm.

Fix: Set `shuffle=True`.

    loader = DataLoader(data, batch_size=64, shuffle=True)

When to ignore: The order carries meaning, as in one long text. An explicit `shuffle=False` is not reported.

Automatic fix: Unsafe. Batches change, and so does the trained model.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hasten.doctor.edits import AddArgument
from hasten.doctor.reading.names.argument_values import ABSENT
from hasten.doctor.reading.objects.data_loaders import MOVING, Loader
from hasten.doctor.rule import Code, Found, Safety, Severity, SourceRule

_NOT_GIVEN = (ABSENT, None)


def check(code: Code) -> Iterator[Found]:
    for loader in code.loaders:
        chosen = any(loader.constant(each) not in _NOT_GIVEN for each in ("shuffle", "sampler", "batch_sampler"))
        if not chosen and _is_surely_trained_on(loader) and _is_in_order(loader):
            edits = (AddArgument(loader.call, "shuffle=True"),)
            message = "DataLoader without shuffle: every epoch has the same batches, in stored order"
            yield Found(loader.call, message, edits=edits)


def _is_surely_trained_on(loader: Loader) -> bool:
    """Not by a loop that trains or evaluates by an argument: that may only evaluate on this one."""
    if loader.is_fitted:
        return True
    backwards = [each for step in loader.steps for each in step.methods("backward", "manual_backward", "training_step")]
    return any(not each.is_conditional for each in backwards)


def _is_in_order(loader: Loader) -> bool:
    if not loader.sources or loader.given_to - MOVING or _is_one_batch(loader.argument("batch_size")):
        return False
    return all(each.is_map_style and not each.has_no_order for each in loader.sources)


def _is_one_batch(size: object) -> bool:
    """`batch_size=len(data)`: all of it, whatever the order."""
    match size:
        case ast.Call(ast.Name("len")) | ast.Subscript(ast.Attribute(_, "shape")) | ast.Call(ast.Attribute(_, "size")):
            return True
        case _:
            return False


RULE = SourceRule(
    code="H104",
    severity=Severity.WRONG,
    fix="pass shuffle=True, or shuffle=False if the order is intended",
    safety=Safety.UNSAFE,
    check=check,
)
