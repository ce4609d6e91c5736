"""torch.load() without weights_only.

What it finds: `torch.load` without `weights_only` and without `pickle_module`.

Why it matters: A checkpoint is a pickle, which can run any code while it is read. Before torch 2.6 the
default was to load everything in it. Since 2.6 the default is `weights_only=True`, and the same line rejects
files that it read before.

Fix: Pass `weights_only=True`, or `False` for a file that you trust and that holds other objects. Save the
`state_dict()` instead of the whole module.

    model.load_state_dict(torch.load("model.pt", weights_only=True))

When to ignore: The code must run on a version of torch that has no `weights_only`.

Automatic fix: Unsafe. A file that holds other objects is rejected, as torch does by default since 2.6.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hasten.doctor.edits import AddArgument
from hasten.doctor.reading.names.argument_values import ABSENT
from hasten.doctor.rule import Code, Found, Safety, Severity, SourceRule

_CHOICES = {"weights_only": None, "pickle_module": 2}  # by name, with the place where it may be given without


def check(code: Code) -> Iterator[Found]:
    for call in code.calls_to("torch.load", "torch.serialization.load"):
        # Who gives a pickle_module reads the file by it: it cannot be had together with weights_only.
        if all(code.values.argument(call, each, place) is ABSENT for each, place in _CHOICES.items()):
            func = ast.unparse(call.func)
            message = f"{func} without weights_only: a file can run code before torch 2.6, or be rejected since"
            yield Found(call, message, edits=(AddArgument(call, "weights_only=True"),))


RULE = SourceRule(
    code="H416",
    severity=Severity.STYLE,  # since torch 2.6 it is the default
    fix="pass weights_only=True",
    safety=Safety.UNSAFE,
    check=check,
)
