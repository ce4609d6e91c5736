"""Tensor made from a list of arrays.

What it finds: `torch.tensor(rows)`, or `torch.FloatTensor(rows)`, where `rows` is a list of NumPy arrays.

Why it matters: `torch.tensor` reads every number of a list as a Python object. NumPy joins the arrays in one copy,
and torch copies the result at once. For a batch of images that is hundreds of times faster.

Fix: Make one array of the list first.

    batch = torch.tensor(np.array(rows))

When to ignore: The list is short and made once.

Automatic fix: Unsafe. NumPy joins arrays of different dtypes to another dtype than torch does.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hasten.doctor.edits import Enclose
from hasten.doctor.reading.names.scopes import Kind
from hasten.doctor.reading.objects.array_kinds import Arrays
from hasten.doctor.rule import Code, Found, Preserves, Safety, SourceRule

_MAKE = (
    *("torch.tensor", "torch.as_tensor", "torch.Tensor"),
    *("torch.FloatTensor", "torch.DoubleTensor", "torch.LongTensor", "torch.IntTensor"),
)


def check(code: Code) -> Iterator[Found]:
    arrays, numpy = Arrays(code.names), _numpy(code)
    for call in code.calls_to(*_MAKE):
        given = call.args[0] if call.args else None
        if given is not None and arrays.is_list_of_arrays(given):
            edits = (Enclose(given, f"{numpy}.array"),) if numpy else ()
            message = f"{ast.unparse(call.func)} reads a list of arrays number by number"
            yield Found(call, message, edits=edits)


def _numpy(code: Code) -> str:
    """The file's name for NumPy; "" where it has none."""
    for name, bindings in code.scopes.module.bindings.items():
        if all(each.kind is Kind.IMPORT and each.imported == "numpy" for each in bindings):
            return name
    return ""


RULE = SourceRule(
    code="H208",
    fix="make one array of it first: np.array(…)",
    safety=Safety.UNSAFE,
    preserves=Preserves.BITS,
    check=check,
)
