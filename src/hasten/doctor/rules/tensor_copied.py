"""Copying an array into a tensor.

What it finds: `torch.tensor(x)` of what is an array of NumPy, or a tensor.

Why it costs: `torch.tensor` always copies; `torch.as_tensor` and `torch.from_numpy` share the memory of the array.

When to ignore it: Where the array is changed later, and the tensor must not change with it.

Fix: Use `torch.as_tensor(x)`. For a tensor write `x.detach().clone()` where a copy is wanted, and `x` where not.

Safety: Unsafe: a change of the array then changes the tensor, and the other way round.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hasten.doctor.edits import Replace
from hasten.doctor.reading.objects.numpy_arrays import Arrays
from hasten.doctor.reading.objects.single_tensors import Single
from hasten.doctor.rule import Code, Found, Safety, SourceRule


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
            yield Found(call, f"{ast.unparse(call.func)} copies the array {said}", edits=_edits(call.func))
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
    fix="use torch.as_tensor, which shares the memory of the array",
    safety=Safety.UNSAFE,
    check=check,
)
