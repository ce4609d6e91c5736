"""torch.tensor() of an array or of a tensor.

What it finds: `torch.tensor(x)` where `x` is a NumPy array or a tensor.

Why it matters: `torch.tensor` always copies. `torch.as_tensor` and `torch.from_numpy` share the memory of the
array.

Fix: Use `torch.as_tensor`.

    x = torch.as_tensor(array)
    y = tensor.detach().clone()  # only if a copy is needed

When to ignore: The array changes later, and the tensor must keep the old values.

Automatic fix: Unsafe. Array and tensor then share memory, so a change of one changes the other. An array that
something else visibly refers to is not changed.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hasten.doctor.edits import Replace
from hasten.doctor.reading.objects.array_kinds import Arrays
from hasten.doctor.reading.objects.single_tensors import Single
from hasten.doctor.rule import Code, Found, Preserves, Safety, Severity, SourceRule


def check(code: Code) -> Iterator[Found]:
    arrays, single = Arrays(code.names), Single(code.names)
    for call in code.calls_to("torch.tensor"):
        given = call.args[0] if call.args else None
        if given is None or isinstance(given, ast.Starred):
            continue
        said = ast.unparse(given)
        if _needs_copy(code, call):
            continue
        if arrays.is_array(given):
            edits = _edits(call.func) if arrays.is_alone(given) else ()
            yield Found(call, f"{ast.unparse(call.func)}({said}) copies the array", edits=edits)
        elif isinstance(given, ast.Name) and single.is_tensor(given):
            yield Found(call, f"{said} is a tensor already", f"use {said}, or {said}.detach().clone() for a copy")


def _edits(function: ast.expr) -> tuple[Replace, ...]:
    """`torch.as_tensor` for `torch.tensor`; of `tensor` alone, the other may not be imported."""
    if not isinstance(function, ast.Attribute):
        return ()
    return (Replace(function, f"{ast.unparse(function.value)}.as_tensor"),)


def _needs_copy(code: Code, call: ast.Call) -> bool:
    """Whether memory of its own is the point, as that of a parameter is, or a dtype or device takes a copy anyway."""
    around = code.names.parents[call]
    owner = around.func if isinstance(around, ast.Call) else None
    is_kept = code.names.qualified(owner) == "torch.nn.Parameter" or getattr(owner, "attr", "") == "register_buffer"
    return is_kept or bool(call.keywords)


RULE = SourceRule(
    code="H202",
    severity=Severity.SLIGHT,
    fix="use torch.as_tensor, which shares the array's memory",
    safety=Safety.UNSAFE,
    preserves=Preserves.BITS,
    check=check,
)
