"""Whether a loss whose gradients are added up over several batches is surely not divided by their number."""

from __future__ import annotations

import ast

from hasten.doctor.reading.names.argument_values import ABSENT, Values
from hasten.doctor.reading.names.name_resolution import Names
from hasten.doctor.reading.names.scopes import Binding, Kind
from hasten.doctor.reading.names.value_origins import returns
from hasten.doctor.reading.objects.optimizer_roles import name_of
from hasten.doctor.reading.objects.tensor_kinds import Tensors

_DEEPEST = 8
_WEIGH = frozenset({"div", "div_", "mul", "mul_", "divide", "divide_", "true_divide", "multiply", "sum"})


class Weights:
    """For one window. every: the expression of the number of its batches."""

    def __init__(self, names: Names, values: Values, tensors: Tensors, every: ast.expr) -> None:
        self._names, self._values, self._tensors = names, values, tensors
        self._every, self._number = ast.unparse(every), values.constant(every)

    def is_mean_of_batch(self, node: ast.AST | None, depth: int = 0) -> bool:
        """Whether it surely is a mean over one batch. What cannot be seen may be weighted already."""
        if node is None or depth > _DEEPEST or self._mentions_number(node):
            return False
        match node:
            case ast.Name():
                bindings = self._names.bindings(node)
                return bool(bindings) and all(self._is_bound_to_mean(each, depth) for each in bindings)
            case ast.Attribute(base):  # outputs.loss
                return not self._names.bindings_of(node) and self.is_mean_of_batch(base, depth + 1)
            case ast.BinOp(left, ast.Add() | ast.Sub(), right):
                return self.is_mean_of_batch(left, depth + 1) or self.is_mean_of_batch(right, depth + 1)
            case ast.BinOp(loss, ast.Div() | ast.Mult(), factor):
                return self._is_other_number(factor) and self.is_mean_of_batch(loss, depth + 1)
            case ast.Call():
                return self._computes_mean(node, depth)
            case _:
                return False

    def _mentions_number(self, node: ast.AST) -> bool:
        parts = ast.walk(node) if not self._every.isdigit() else ()
        return any(isinstance(each, ast.expr) and ast.unparse(each) == self._every for each in parts)

    def _is_other_number(self, factor: ast.expr | None) -> bool:
        """Whether it is a constant other than the number of batches and its inverse."""
        value, number = self._values.constant(factor), self._number
        if not isinstance(value, int | float) or not isinstance(number, int | float):
            return False
        return value != number and abs(value * number - 1) > 1e-6

    def _is_bound_to_mean(self, binding: Binding, depth: int) -> bool:
        if isinstance(binding.node, ast.AugAssign):
            adds = isinstance(binding.node.op, ast.Add | ast.Sub)
            return adds or self._is_other_number(binding.source)
        source = binding.source if binding.kind is Kind.PART else self._names.source(binding)
        return self.is_mean_of_batch(source, depth + 1)

    def _computes_mean(self, call: ast.Call, depth: int) -> bool:
        making = self._names.making(call.func)
        given = [self._values.constant_argument(each, "reduction") for each in (call, making) if each is not None]
        if name_of(call.func) in _WEIGH or any(each not in (ABSENT, "mean") for each in given):
            return False
        function = self._names.function(call)
        if function is not None:
            parts = [each.elts[0] if isinstance(each, ast.Tuple) and each.elts else each for each in returns(function)]
            return bool(parts) and all(self.is_mean_of_batch(each, depth + 1) for each in parts)
        made = self._names.made_by(call.func) or self._names.qualified(call.func) or ""
        if made.startswith("torch.nn.") or self._tensors.is_criterion(call.func) or self._tensors.is_model(call.func):
            return True
        return isinstance(call.func, ast.Attribute) and self.is_mean_of_batch(call.func.value, depth + 1)


def loss_of(backward: ast.AST) -> ast.expr | None:
    """What backward() is called on; None where a framework may divide it by itself, or where it is given a gradient."""
    if not isinstance(backward, ast.Call) or not isinstance(backward.func, ast.Attribute):
        return None
    base, given = backward.func.value, backward.args[0] if backward.args else None
    if backward.func.attr == "manual_backward":
        return given
    if given is not None or any(each.arg in {"gradient", None} for each in backward.keywords):
        return None
    if isinstance(base, ast.Call) and name_of(base.func) == "scale" and len(base.args) == 1:
        return base.args[0]
    return base
