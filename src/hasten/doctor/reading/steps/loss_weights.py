"""Whether a loss that is added up over several batches is divided by their number, or weighted in another way."""

from __future__ import annotations

import ast

from hasten.doctor.reading.names.constants import ABSENT, HIDDEN, Values
from hasten.doctor.reading.names.name_resolution import Names
from hasten.doctor.reading.names.scopes import Binding, Function, Kind
from hasten.doctor.reading.objects.optimizer_roles import name_of
from hasten.doctor.reading.objects.tensor_kinds import Tensors

_DEEPEST = 8
_WEIGH = frozenset({"div", "div_", "mul", "mul_", "divide", "divide_", "true_divide", "multiply"})
_KNOW_ALL = frozenset({"args", "cfg", "config", "conf", "opt", "opts", "self", "hparams", "params", "flags"})


class Weights:
    """Of one window. every: the number of its batches."""

    def __init__(self, names: Names, values: Values, tensors: Tensors, every: ast.expr) -> None:
        self._names, self._values, self._tensors = names, values, tensors
        self._said, self._number = ast.unparse(every), values.constant(every)

    def is_weighted(self, node: ast.AST | None, depth: int = 0) -> bool:
        """Whether it may be: what cannot be seen may."""
        if node is None or depth > _DEEPEST:
            return True
        if isinstance(node, ast.expr) and self._mentions(node):
            return True
        match node:
            case ast.Name() | ast.Attribute():
                return self._of_name(node, depth)
            case ast.Subscript(base):
                return self.is_weighted(base, depth + 1)
            case ast.BinOp(left, ast.Div(), right):
                return self._is_number(right) is not False or self.is_weighted(left, depth + 1)
            case ast.BinOp(left, ast.Mult(), right):
                return self._of_product(left, right, depth)
            case ast.BinOp(left, ast.Add() | ast.Sub(), right):
                return self.is_weighted(left, depth + 1) and self.is_weighted(right, depth + 1)
            case ast.UnaryOp(_, operand):
                return self.is_weighted(operand, depth + 1)
            case ast.IfExp(_, body, orelse):
                return self.is_weighted(body, depth + 1) or self.is_weighted(orelse, depth + 1)
            case ast.Constant():
                return False
            case ast.Call():
                return self._of_call(node, depth)
            case _:
                return True

    def _mentions(self, node: ast.expr) -> bool:
        named = not self._said.isdigit()
        return named and any(isinstance(each, ast.expr) and ast.unparse(each) == self._said for each in ast.walk(node))

    def _is_number(self, divisor: ast.expr) -> bool | None:
        """Whether it is the number of batches; None where one of both is not known."""
        value = self._values.constant(divisor)
        if not isinstance(value, int | float) or not isinstance(self._number, int | float):
            return None
        return value == self._number

    def _of_product(self, left: ast.expr, right: ast.expr, depth: int) -> bool:
        for factor, other in ((left, right), (right, left)):
            value = self._values.constant(factor)
            if isinstance(value, int | float):
                inverse = isinstance(self._number, int | float) and abs(value * self._number - 1) < 1e-6
                return inverse or self.is_weighted(other, depth + 1)
        return True

    def _of_name(self, node: ast.Name | ast.Attribute, depth: int) -> bool:
        if isinstance(node, ast.Name):
            bindings = self._names.bindings(node)
        else:
            bindings = self._names.attribute_bindings(node)
            if not bindings:  # outputs.loss
                return self.is_weighted(node.value, depth + 1)
        return not bindings or any(self._of_binding(each, depth) for each in bindings)

    def _of_binding(self, binding: Binding, depth: int) -> bool:
        match binding.kind:
            case Kind.VALUE | Kind.PART:
                return self.is_weighted(binding.source, depth + 1)
            case Kind.AUGMENTED:
                assert isinstance(binding.node, ast.AugAssign)
                if isinstance(binding.node.op, ast.Add | ast.Sub):
                    return False
                factor = self._values.constant(binding.source)
                return self._number is HIDDEN or factor is HIDDEN or factor in {self._number, 1 / self._number}
            case Kind.PARAMETER:
                return self.is_weighted(self._names.given_to(binding.node), depth + 1)
            case _:
                return True

    def _of_call(self, call: ast.Call, depth: int) -> bool:
        name = self._names.qualified(call.func) or ""
        if name_of(call.func) in _WEIGH:
            return True
        if self._sums(call):
            return True
        function = self._names.function(call)
        if function is not None:
            return self._of_function(function, depth)
        if name.startswith("torch.nn.functional.") or self._tensors.is_criterion(call.func):
            return False
        if self._tensors.is_model(call.func) or (self._names.made_by(call.func) or "").startswith("torch.nn."):
            return False
        if name.startswith("torch."):
            return bool(call.args) and isinstance(call.args[0], ast.Name) and self.is_weighted(call.args[0], depth + 1)
        if isinstance(call.func, ast.Attribute) and name_of(call.func) != "loss" and not name:
            return self.is_weighted(call.func.value, depth + 1)
        passed = [*call.args, *(each.value for each in call.keywords)]
        if any("loss" in name_of(each) and self.is_weighted(each, depth + 1) for each in passed):
            return True
        given = {ast.unparse(each).split(".")[0] for each in passed}
        return bool(given & _KNOW_ALL) or not name

    def _of_function(self, function: Function, depth: int) -> bool:
        returned = [each.value for each in ast.walk(function) if isinstance(each, ast.Return) and each.value]
        parts = [each.elts if isinstance(each, ast.Tuple) else [each] for each in returned]
        return not parts or any(self.is_weighted(each[0], depth + 1) for each in parts if each)

    def _sums(self, call: ast.Call) -> bool:
        """Whether it is a sum over samples, whose size is its author's to choose."""
        if isinstance(call.func, ast.Attribute) and call.func.attr == "sum":
            return True
        making = self._names.making(call.func)
        given = [self._values.constant_argument(each, "reduction") for each in (call, making) if each is not None]
        return any(each not in (ABSENT, "mean") for each in given)


def loss_of(names: Names, values: Values, backward: ast.AST) -> ast.expr | None:
    """What it is called on; None where a framework may divide it by itself, or where it is given a gradient."""
    if not isinstance(backward, ast.Call) or not isinstance(backward.func, ast.Attribute):
        return None
    base = backward.func.value
    if isinstance(base, ast.Call) and names.qualified(base.func) == "typing.cast":
        base = base.args[-1]
    given = backward.args[0] if backward.args else None
    if backward.func.attr == "manual_backward":
        return given
    if given is not None:
        made = names.making(base)
        if made is None or names.qualified(made.func) not in {"accelerate.Accelerator", "lightning.Fabric"}:
            return None
        counts = [
            values.constant_argument(made, each)
            for each in ("gradient_accumulation_steps", "gradient_accumulation_plugin")
        ]
        return given if counts == [ABSENT, ABSENT] else None
    if any(each.arg in {"gradient", None} for each in backward.keywords):
        return None
    if isinstance(base, ast.Call) and name_of(base.func) == "scale" and len(base.args) == 1:
        return base.args[0]
    return base
