"""Which expressions of a file are arrays of NumPy: of at least one dimension, and not single numbers of it."""

from __future__ import annotations

import ast

from hasten.doctor.reading.names.name_resolution import Names, only_return
from hasten.doctor.reading.names.scopes import Binding, Kind

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
_KEEP_METHODS = frozenset(
    {"astype", "reshape", "copy", "transpose", "clip", "flatten", "ravel", "repeat", "round", "squeeze", "swapaxes",
     "view", "cumsum", "argsort"}
)  # fmt: skip


class Arrays:
    def __init__(self, names: Names) -> None:
        self._names = names

    def is_array(self, node: ast.AST | None, depth: int = 0) -> bool:
        if node is None or depth > _DEEPEST:
            return False
        match node:
            case ast.Name():
                return self._are_arrays(self._names.bindings(node), depth)
            case ast.Attribute(ast.Name("self")):
                return self._are_arrays(self._names.bindings_of(node), depth)
            case ast.Subscript(base, index):
                return self.is_array(base, depth + 1) and self._is_part(index, depth)
            case ast.BinOp(left, _, right):
                return self.is_array(left, depth + 1) or self.is_array(right, depth + 1)
            case ast.UnaryOp(_, operand):
                return self.is_array(operand, depth + 1)
            case ast.Call():
                return self._is_made(node, depth)
            case _:
                return False

    def _are_arrays(self, bindings: list[Binding], depth: int) -> bool:
        return bool(bindings) and all(self._is_bound_to_array(each, depth) for each in bindings)

    def _is_bound_to_array(self, binding: Binding, depth: int) -> bool:
        if binding.kind is Kind.AUGMENTED:
            return True  # what it adds to is bound before
        if binding.kind is Kind.ITEM and isinstance(binding.source, ast.Call):
            return self._splits(binding.source)
        return self.is_array(self._names.source(binding), depth + 1)

    def _splits(self, call: ast.Call) -> bool:
        """`for train, valid in KFold().split(x)`, numbered or not: arrays of places."""
        if self._names.qualified(call.func) == "builtins.enumerate" and call.args:
            return isinstance(call.args[0], ast.Call) and self._splits(call.args[0])
        made = self._names.made_by(getattr(call.func, "value", None)) or ""
        return getattr(call.func, "attr", "") == "split" and made.startswith("sklearn.model_selection.")

    def _is_part(self, index: ast.expr, depth: int) -> bool:
        """Whether it takes several elements, and not one."""
        return isinstance(index, ast.Slice | ast.Compare) or self.is_array(index, depth + 1)

    def _is_made(self, call: ast.Call, depth: int) -> bool:
        name = self._names.qualified(call.func) or ""
        if name in _MAKE:
            return not (name == "numpy.where" and len(call.args) == 1) and not self._holds_one(call, name)
        if name in _KEEP:
            return any(self.is_array(each, depth + 1) for each in call.args)
        if name.startswith("numpy."):
            sized = len(call.args) > 2 or any(each.arg == "size" for each in call.keywords)
            drawn = name.rpartition(".")[2]
            return (drawn in _DRAW and sized) or (drawn in {"rand", "randn"} and bool(call.args))
        if isinstance(call.func, ast.Attribute):
            method, base = call.func.attr, call.func.value
            if method == "to_numpy" or (method in _DRAW and self._is_generator(base)):
                return method in {"to_numpy", "permutation"} or bool(call.args[2:] or call.keywords)
            if method in _KEEP_METHODS:
                return self.is_array(base, depth + 1)
        return self.is_array(only_return(self._names.function(call)), depth + 1)

    def _is_generator(self, node: ast.expr) -> bool:
        return self._names.made_by(node) in {"numpy.random.default_rng", "numpy.random.RandomState"}

    def _holds_one(self, call: ast.Call, name: str) -> bool:
        """`np.array(3.0)`: there is nothing to copy."""
        given = self._names.followed(call.args[0]) if call.args else None
        return name in {"numpy.array", "numpy.asarray"} and isinstance(given, ast.Constant)
