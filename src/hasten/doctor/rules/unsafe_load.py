"""Loading a file that may run code.

What it finds: `torch.load` without `weights_only`.

Why it costs: A checkpoint is a pickle, which can call any function while it is read. Before torch 2.6 everything in it
is loaded by default. Since 2.6 the default is `weights_only=True`, and the same line refuses files that it read before.

When to ignore it: Where an old torch without `weights_only` has to be supported.

Fix: Give `weights_only=True`, or `False` for a trusted file with other objects: a choice is not reported.

Safety: Unsafe: a file that holds other objects is refused; torch does so by default since 2.6. Of a whole module, save
and load the `state_dict()`.
"""

from __future__ import annotations

from collections.abc import Iterator

from hasten.doctor.edits import AddArgument
from hasten.doctor.reading.names.argument_values import ABSENT
from hasten.doctor.rule import Code, Found, Safety, Severity, SourceRule

_CHOICES = {"weights_only": None, "pickle_module": 2}  # by name, with the place where it may be given without


def check(code: Code) -> Iterator[Found]:
    for call in code.calls_to("torch.load", "torch.serialization.load"):
        # Who gives a pickle_module reads the file by it: it cannot be had together with weights_only.
        if all(code.values.argument(call, each, place) is ABSENT for each, place in _CHOICES.items()):
            message = "what is in the file may run code before torch 2.6, and be refused since"
            yield Found(call, message, edits=(AddArgument(call, "weights_only=True"),))


RULE = SourceRule(
    code="H416",
    severity=Severity.STYLE,  # since torch 2.6 it is the default
    fix="give weights_only=True",
    safety=Safety.UNSAFE,
    check=check,
)
