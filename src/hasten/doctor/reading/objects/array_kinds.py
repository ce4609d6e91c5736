"""Which expressions of a file are arrays of NumPy, or lists of them, and which of those nothing else refers to."""

from __future__ import annotations

import ast

from hasten.doctor.reading.names.name_resolution import Names, only_return
from hasten.doctor.reading.names.scopes import Binding, Kind, Loop, begin, iterated
from hasten.doctor.reading.objects.optimizer_roles import name_of

_DEEPEST = 12
_VIEW = frozenset(
    f"numpy.{name}"
    for name in ("asarray", "ascontiguousarray", "expand_dims", "transpose", "reshape", "flip", "moveaxis", "diag",
                 "frombuffer", "atleast_1d", "atleast_2d")
)  # fmt: skip
"""Functions that may return the memory of what they are given."""
_MAY_SHARE = _VIEW | {"numpy.float32", "numpy.float64", "numpy.int64"}
_MAKE = _VIEW | {
    f"numpy.{name}"
    for name in ("array", "zeros", "ones", "full", "empty", "arange", "linspace", "eye", "stack", "concatenate",
                 "vstack", "hstack", "zeros_like", "ones_like", "full_like", "empty_like", "tile", "repeat", "pad",
                 "where", "bincount", "roll", "random.permutation", "fromfile", "loadtxt", "genfromtxt", "meshgrid",
                 "argsort", "sort", "unique", "cumsum", "identity", "outer", "copy", "convolve", "fft.fft", "fft.ifft",
                 "fft.rfft", "fft.irfft")
}  # fmt: skip
_KEEP = frozenset(
    f"numpy.{name}"
    for name in ("log", "log1p", "exp", "sqrt", "sin", "cos", "tanh", "abs", "clip", "square", "maximum", "minimum",
                 "float32", "float64", "int64", "sign", "nan_to_num", "round", "power", "add", "subtract", "multiply")
)  # fmt: skip
_DRAW = frozenset({"uniform", "normal", "randint", "integers", "random", "standard_normal", "choice", "permutation"})
_GENERATORS = frozenset({"numpy.random.default_rng", "numpy.random.RandomState"})
_VIEW_METHODS = frozenset({"reshape", "transpose", "ravel", "squeeze", "swapaxes", "view"})
_KEEP_METHODS = _VIEW_METHODS | {"astype", "copy", "clip", "flatten", "repeat", "round", "cumsum", "argsort"}
_SHARE = frozenset({"copy", "out"})  # arguments by which a function returns memory that was there before
_FIGURES = frozenset({"shape", "dtype", "ndim", "size", "nbytes", "min", "max", "mean", "std", "sum"})


class Arrays:
    """Arrays have at least one dimension: single numbers of NumPy are none."""

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
        function = self._names.function(call)
        if function is None and isinstance(call.func, ast.Attribute):
            if last == "to_numpy":
                return True
            if last in _DRAW and self._names.made_by(call.func.value) in _GENERATORS:
                return last == "permutation" or bool(call.args[2:] or call.keywords)
            if last in _KEEP_METHODS:
                return self.is_array(call.func.value, depth + 1)
        return self.is_array(only_return(function), depth + 1)

    # ── lists ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def is_list_of_arrays(self, node: ast.AST) -> bool:
        """Or of numbers of NumPy, which a row of an array can be."""
        match node:
            case ast.List(elements):
                return bool(elements) and all(map(self._is_element, elements))
            case ast.ListComp(element):
                return self._is_element(element)
            case ast.Name():
                lists, added = [self._names.source(each) for each in self._names.bindings(node)], self._appended(node)
                if added:
                    begun = bool(lists) and all(isinstance(each, ast.List) and not each.elts for each in lists)
                    return begun and all(map(self._is_element, added))
                return len(lists) == 1 and isinstance(lists[0], ast.ListComp) and self._is_element(lists[0].elt)
            case _:
                return False

    def _is_element(self, node: ast.AST | None, depth: int = 0) -> bool:
        """Whether it is an array, or a row or number of one, or computed from it."""
        if depth > _DEEPEST:
            return False
        match node:
            case ast.Subscript(base):
                return self._is_known(base) or self._is_element(base, depth + 1)
            case ast.BinOp(left, _, right):
                return self._is_element(left, depth + 1) or self._is_element(right, depth + 1)
            case ast.Call(ast.Attribute(base, method)) if method in _KEEP_METHODS:
                return self.is_array(node) or self._is_element(base, depth + 1)
            case ast.Name() if bindings := self._names.bindings(node):
                return self._is_known(node) or all(self._is_bound_to_element(each, depth) for each in bindings)
            case _:
                return self._is_known(node)

    def _is_bound_to_element(self, binding: Binding, depth: int) -> bool:
        if binding.kind is Kind.ITEM and isinstance(binding.node, ast.For | ast.comprehension):
            whole = isinstance(binding.node.target, ast.Name)
            return whole and binding.source is not None and self._is_known(binding.source)
        return self._is_element(self._names.source(binding), depth + 1)

    def _is_known(self, node: ast.AST | None) -> bool:
        """Whether it is an array, as `rows` and `self.rows` are."""
        if isinstance(node, ast.Attribute):
            sources = [self._names.source(each) for each in self._names.bindings_of(node)]
            return bool(sources) and all(map(self.is_array, sources))
        return self.is_array(node)

    def _appended(self, name: ast.Name) -> list[ast.expr]:
        found, scope = list[ast.expr](), self._names.scopes.of(name)
        for call in self._names.scopes.all(ast.Call):
            match call:
                case ast.Call(ast.Attribute(ast.Name(base), "append"), [element]) if base == name.id:
                    found += [element] if self._names.scopes.of(call) is scope else []
        return found

    # ── memory ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def is_alone(self, node: ast.AST | None, depth: int = 0) -> bool:
        """Whether an array surely has memory that nothing else refers to, so that a tensor can have it."""
        if depth > _DEEPEST:
            return False
        match node:
            case ast.BinOp():
                return True
            case ast.Subscript(base, index):
                return not isinstance(index, ast.Slice) or self.is_alone(base, depth + 1)
            case ast.Name():
                made = [each for each in self._names.bindings(node) if each.kind is not Kind.AUGMENTED]
                values = [each.source if each.kind is Kind.VALUE else None for each in made]
                return self._is_last(node, made) and all(self.is_alone(each, depth + 1) for each in values)
            case ast.Call():
                return self._is_new(node, depth)
            case _:
                return False

    def _is_new(self, call: ast.Call, depth: int) -> bool:
        if any(each.arg in _SHARE for each in call.keywords):
            return False
        name, method = self._names.qualified(call.func) or "", name_of(call.func)
        if name in _MAY_SHARE:
            return bool(call.args) and self.is_alone(call.args[0], depth + 1)
        if name.startswith("numpy."):
            return True
        function = self._names.function(call)
        if function is None and isinstance(call.func, ast.Attribute) and method in _KEEP_METHODS | _DRAW:
            return method not in _VIEW_METHODS or self.is_alone(call.func.value, depth + 1)
        return self.is_alone(only_return(function), depth + 1)

    def _is_last(self, name: ast.Name, made: list[Binding]) -> bool:
        """Whether it is made each time before this place is reached, and nothing else keeps, changes or reads it. made:
        where it is bound."""
        names, here = self._names, begin(name)
        scope, loops, branches = names.scopes.of(name), self._loops(name), names.branches(name)
        for each in made:
            if names.scopes.of(each.node) is not scope or each.since > here or self._loops(each.node) != loops:
                return False
        if not any(names.branches(each.node) <= branches for each in made):
            return False
        bound = {*map(id, names.bindings(name))}
        for other in names.scopes.all(ast.Name):
            if other.id != name.id or other is name:
                continue
            is_changed = isinstance(names.parents[other], ast.AugAssign) and names.scopes.of(other) is scope
            is_read = isinstance(other.ctx, ast.Load) and bool(bound & {*map(id, names.bindings(other))})
            if (is_changed and begin(other) > here) or (is_read and not (begin(other) < here and self._asks(other))):
                return False
        return True

    def _asks(self, name: ast.Name) -> bool:
        """`rows.shape`, and `rows[0] = 1`: which keeps no reference."""
        match self._names.parents[name]:
            case ast.Attribute(attr=attribute):
                return attribute in _FIGURES
            case ast.Subscript(ctx=ast.Store()):
                return True
            case _:
                return False

    def _loops(self, node: ast.AST) -> list[ast.AST]:
        return [each for each in self._names.around(node) if isinstance(each, Loop)]
