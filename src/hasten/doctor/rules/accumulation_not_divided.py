"""Accumulated loss not divided by the number of batches.

What it finds: A loop that steps the optimizer every n-th batch and calls `backward()` on a mean loss that is
neither divided by n nor weighted in another way.

Why it matters: The summed gradient is n times the gradient of one large batch. With SGD that acts as an n
times higher learning rate, and clipping cuts more than it should.

Fix: Divide the loss by n.

    (loss / n).backward()

When to ignore: The sum is intended, for example because the loss is itself a sum over samples.

Automatic fix: Unsafe. Gradients become n times smaller, so a learning rate tuned without the division must be
retuned.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hasten.doctor.edits import Edit, Replace
from hasten.doctor.reading.names.argument_values import ABSENT
from hasten.doctor.reading.names.scopes import Binding, Kind
from hasten.doctor.reading.names.value_origins import returns
from hasten.doctor.reading.objects.optimizer_roles import name_of
from hasten.doctor.reading.steps.accumulation_windows import Window
from hasten.doctor.reading.steps.optimizer_events import Action
from hasten.doctor.rule import Code, Found, Safety, Severity, SourceRule

_DEEPEST = 8
_WEIGH = frozenset({"div", "div_", "mul", "mul_", "divide", "divide_", "true_divide", "multiply", "sum"})


def check(code: Code) -> Iterator[Found]:
    for window in code.windows.all:
        if window.turn.of(Action.REWRITE, Action.TOUCH) or _rate_allows_for_it(code, window):
            continue
        weights = _Weights(code, window.every)
        losses = {each.node: _loss_of(each.node) for each in window.backwards}
        if not all(weights.is_mean_of_batch(each) for each in losses.values()):
            continue
        for node, loss in losses.items():
            if loss is not None:
                every = ast.unparse(window.every)
                message = f"gradients of {ast.unparse(loss)} are summed over {every} batches and not divided by {every}"
                yield Found(node, message, edits=_edits(code, window, loss))


def _rate_allows_for_it(code: Code, window: Window) -> bool:
    """Whether the optimizer is made with the number of batches in view."""
    making = code.names.making(window.update.target)
    every = ast.unparse(window.every)
    return making is not None and any(ast.unparse(each) == every for each in ast.walk(making))


def _edits(code: Code, window: Window, loss: ast.expr) -> tuple[Edit, ...]:
    """Where the condition is in the same function, and counts with a name or number that is valid there."""
    near = code.scopes.of(loss) is code.scopes.of(window.every) and isinstance(window.every, ast.Name | ast.Constant)
    if not near or not isinstance(loss, ast.Name):
        return ()
    text = f"{ast.unparse(loss)} / {ast.unparse(window.every)}"
    parent = code.names.parents[loss]
    return (Replace(loss, f"({text})" if isinstance(parent, ast.Attribute) else text),)


class _Weights:
    """Which losses are surely not divided by the number of batches of a window. every: its expression."""

    def __init__(self, code: Code, every: ast.expr) -> None:
        self._names, self._values, self._tensors = code.names, code.values, code.tensors
        self._every, self._number = ast.unparse(every), code.values.constant(every)

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


def _loss_of(backward: ast.AST) -> ast.expr | None:
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


RULE = SourceRule(
    code="H409",
    severity=Severity.WRONG,
    fix="divide the loss by the number of batches before backward()",
    safety=Safety.UNSAFE,
    technique="accumulation",
    check=check,
)
