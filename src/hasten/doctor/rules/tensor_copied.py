"""torch.tensor() of an array or of a tensor.

What it finds: `torch.tensor(x)` where `x` is a NumPy array or a tensor.

Why it matters: `torch.tensor` always copies. `torch.as_tensor` and `torch.from_numpy` share the memory of the
array.

Fix: Use `torch.as_tensor`.

    x = torch.as_tensor(array)
    y = tensor.detach().clone()  # only if a copy is needed

When to ignore: The array changes later, and the tensor must keep the old values.

Automatic fix: Unsafe. Array and tensor then share memory, so a change of one changes the other.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hasten.doctor.edits import Replace
from hasten.doctor.reading.names.name_resolution import Names, only_return
from hasten.doctor.reading.names.scopes import Binding, Kind, iterated
from hasten.doctor.reading.objects.optimizer_roles import name_of
from hasten.doctor.reading.objects.single_tensors import Single
from hasten.doctor.rule import Code, Found, Safety, Severity, SourceRule

_DEEPEST = 12
_MAKE = frozenset(
    f"numpy.{name}"
    for name in ("array", "asarray", "ascontiguousarray", "zeros", "ones", "full", "empty", "arange", "linspace", "eye",
                 "stack", "concatenate", "vstack", "hstack", "zeros_like", "ones_like", "full_like", "empty_like",
                 "expand_dims", "transpose", "reshape", "tile", "repeat", "pad", "flip", "where", "bincount", "roll",
                 "random.permutation", "moveaxis", "frombuffer", "fromfile", "loadtxt", "genfromtxt", "meshgrid",
                 "argsort", "sort", "unique", "cumsum", "identity", "diag", "outer", "copy", "atleast_1d", "atleast_2d")
)  # fmt: skip
_KEEP = frozenset(
    f"numpy.{name}"
    for name in ("log", "log1p", "exp", "sqrt", "sin", "cos", "tanh", "abs", "clip", "square", "maximum", "minimum",
                 "float32", "float64", "int64", "sign", "nan_to_num", "round", "power", "add", "subtract", "multiply")
)  # fmt: skip
_DRAW = frozenset({"uniform", "normal", "randint", "integers", "random", "standard_normal", "choice", "permutation"})
_GENERATORS = frozenset({"numpy.random.default_rng", "numpy.random.RandomState"})
_KEEP_METHODS = frozenset(
    {"astype", "reshape", "copy", "transpose", "clip", "flatten", "ravel", "repeat", "round", "squeeze", "swapaxes",
     "view", "cumsum", "argsort"}
)  # fmt: skip


def check(code: Code) -> Iterator[Found]:
    arrays, single = _Arrays(code.names), Single(code.names)
    for call in code.calls_to("torch.tensor"):
        given = call.args[0] if call.args else None
        if given is None or isinstance(given, ast.Starred):
            continue
        said = ast.unparse(given)
        if _needs_copy(code, call):
            continue
        if arrays.is_array(given):
            yield Found(call, f"{ast.unparse(call.func)}({said}) copies the array", edits=_edits(call.func))
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


class _Arrays:
    """Which expressions are arrays of NumPy: of at least one dimension, and not single numbers of it."""

    def __init__(self, names: Names) -> None:
        self._names = names

    def is_array(self, node: ast.AST | None, depth: int = 0) -> bool:
        if depth > _DEEPEST:
            return False
        match node:
            case ast.Name():
                bindings = self._names.bindings(node)
                return bool(bindings) and all(self._is_bound_to_array(each, depth) for each in bindings)
            case ast.Subscript(base, index):
                several = isinstance(index, ast.Slice | ast.Compare) or self.is_array(index, depth + 1)
                return several and self.is_array(base, depth + 1)
            case ast.BinOp(left, _, right):
                return self.is_array(left, depth + 1) or self.is_array(right, depth + 1)
            case ast.Call():
                return self._is_made(node, depth)
            case _:
                return False

    def _is_bound_to_array(self, binding: Binding, depth: int) -> bool:
        if binding.kind is Kind.AUGMENTED:
            return True  # what it adds to is bound before
        if binding.kind is Kind.ITEM and binding.source is not None:
            return self._splits(iterated(binding.source))
        return self.is_array(self._names.source(binding), depth + 1)

    def _splits(self, node: ast.expr) -> bool:
        """`for train, valid in KFold().split(x)`: arrays of places."""
        match node:
            case ast.Call(ast.Attribute(base, "split")):
                return (self._names.made_by(base) or "").startswith("sklearn.model_selection.")
            case _:
                return False

    def _is_made(self, call: ast.Call, depth: int) -> bool:
        name = self._names.qualified(call.func) or ""
        last = name.rpartition(".")[2] or name_of(call.func)
        if name in _MAKE:
            given = self._names.followed(call.args[0]) if call.args else None
            holds_one = last in {"array", "asarray"} and isinstance(given, ast.Constant)  # there is nothing to copy
            return not (last == "where" and len(call.args) == 1) and not holds_one
        if name in _KEEP:
            return any(self.is_array(each, depth + 1) for each in call.args)
        if name.startswith("numpy."):
            sized = len(call.args) > 2 or any(each.arg == "size" for each in call.keywords)
            return (last in _DRAW and sized) or (last in {"rand", "randn"} and bool(call.args))
        if isinstance(call.func, ast.Attribute):
            if last == "to_numpy":
                return True
            if last in _DRAW and self._names.made_by(call.func.value) in _GENERATORS:
                return last == "permutation" or bool(call.args[2:] or call.keywords)
            if last in _KEEP_METHODS:
                return self.is_array(call.func.value, depth + 1)
        return self.is_array(only_return(self._names.function(call)), depth + 1)


RULE = SourceRule(
    code="H202",
    severity=Severity.SLIGHT,
    fix="use torch.as_tensor, which shares the array's memory",
    safety=Safety.UNSAFE,
    check=check,
)
