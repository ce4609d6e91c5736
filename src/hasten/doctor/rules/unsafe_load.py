"""Loading a file that may run code.

What it finds: `torch.load` without `weights_only`.

Why it costs: A checkpoint is a pickle, which can call any function while it is read. Before torch 2.6 everything in it
is loaded by default. Since 2.6 the default is `weights_only=True`, and the same line refuses files that it read before.

When to ignore it: Where an old torch without `weights_only` has to be supported.

Fix: Give `weights_only=True`, or `False` for a trusted file with other objects: a choice is not reported.

Safety: Unsafe: a file that holds other objects is refused.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hasten.doctor.edits import AddArgument
from hasten.doctor.reading.names.argument_values import ABSENT
from hasten.doctor.rule import Code, Found, Safety, Severity, SourceRule

_CHOICES = {"weights_only": None, "pickle_module": 2}  # by name, with the place where it may be given without

_OF_MODULES = ("eval", "train", "parameters", "state_dict", "load_state_dict", "forward")


def check(code: Code) -> Iterator[Found]:
    for call in code.calls_to("torch.load", "torch.serialization.load"):
        # Who gives a pickle_module reads the file by it: it cannot be had together with weights_only.
        if all(code.values.argument(call, each, place) is ABSENT for each, place in _CHOICES.items()):
            message = "what is in the file may run code before torch 2.6, and be refused since"
            if _is_used_as_module(code, call):
                yield Found(call, message, "save and load its state_dict(), and give weights_only=True")
            else:
                yield Found(call, message, edits=(AddArgument(call, "weights_only=True"),))


def _is_used_as_module(code: Code, call: ast.Call) -> bool:
    """`model = torch.load(path)`: weights_only would refuse it."""
    around = code.names.parents[call]
    if isinstance(around, ast.Attribute):
        return around.attr in _OF_MODULES
    targets = {ast.unparse(each) for each in around.targets} if isinstance(around, ast.Assign) else set()
    used = (each.func.value for each in code.methods(*_OF_MODULES) if isinstance(each.func, ast.Attribute))
    return bool(targets) and any(ast.unparse(each) in targets for each in used)


RULE = SourceRule(
    code="H416",
    severity=Severity.WRONG,
    fix="give weights_only=True",
    safety=Safety.UNSAFE,
    check=check,
)
