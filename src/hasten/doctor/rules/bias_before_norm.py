"""Bias that the following batch norm cancels.

What it finds: A convolution or linear layer with a bias, whose output goes directly into a batch norm. The
two are neighbours in an `nn.Sequential`, or are called as `self.bn(self.conv(x))`.

Why it matters: Batch norm subtracts the mean of each channel, and the bias with it. Computing and training
the bias is wasted.

Fix: Pass `bias=False` to the layer before the batch norm.

    nn.Sequential(nn.Conv2d(3, 64, 3, bias=False), nn.BatchNorm2d(64))

When to ignore: A checkpoint holds the bias, or the batch norm never trains.

Automatic fix: Unsafe. A checkpoint that holds the bias no longer fits, and layers created later draw other
random numbers.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from itertools import pairwise

from hasten.doctor.edits import AddArgument
from hasten.doctor.reading.names.argument_values import ABSENT
from hasten.doctor.reading.names.name_resolution import method
from hasten.doctor.reading.objects.layer_calls import Layers, is_init_of_super
from hasten.doctor.rule import Code, Found, Safety, Severity, SourceRule

_PLACE_OF_BIAS = {"torch.nn.Linear": 2} | {
    f"torch.nn.{kind}{n}d": 7 for kind in ("Conv", "ConvTranspose") for n in (1, 2, 3)
}
_NORMS = frozenset({*(f"torch.nn.BatchNorm{n}d" for n in (1, 2, 3)), "torch.nn.SyncBatchNorm"})


def check(code: Code) -> Iterator[Found]:
    for layer, norm in dict.fromkeys((*_side_by_side(code), *_called_in_forward(code))):
        place = _PLACE_OF_BIAS.get(code.names.qualified(layer.func) or "")
        if place is None or code.names.qualified(norm.func) not in _NORMS:
            continue
        bias = code.values.constant_argument(layer, "bias", place)
        if bias is ABSENT or bias is True:
            edits = (AddArgument(layer, "bias=False"),) if bias is ABSENT else ()
            message = f"{ast.unparse(layer.func)} has a bias that the {ast.unparse(norm.func)} after it cancels"
            yield Found(layer, message, edits=edits)


def _side_by_side(code: Code) -> Iterator[tuple[ast.Call, ast.Call]]:
    layers = Layers(code.names)
    for call in code.all(ast.Call):
        owner = code.names.enclosing(call, ast.ClassDef) if is_init_of_super(call) else None
        if code.names.qualified(call.func) == "torch.nn.Sequential" or (
            isinstance(owner, ast.ClassDef) and layers.is_sequential(owner)
        ):
            yield from _pairs(layers.in_order(call))
    for each in code.all(ast.List):  # layers += [convolution, norm], for nn.Sequential(*layers)
        around = code.names.parents[each]
        called = around.func if isinstance(around, ast.Call) else None
        if called is None or (isinstance(called, ast.Attribute) and called.attr == "extend"):
            yield from _pairs(each.elts)


def _pairs(layers: list[ast.expr]) -> Iterator[tuple[ast.Call, ast.Call]]:
    for layer, norm in pairwise(layers):
        if isinstance(layer, ast.Call) and isinstance(norm, ast.Call):
            yield layer, norm


def _called_in_forward(code: Code) -> Iterator[tuple[ast.Call, ast.Call]]:
    """`self.bn(self.conv(x))`, also by way of a name; not where something else takes the convolution's output too."""
    for owner in code.all(ast.ClassDef):
        forward = method(owner, "forward")
        if forward is None:
            continue
        calls = (each for each in ast.walk(forward) if isinstance(each, ast.Call) and len(each.args) == 1)
        for call in calls:
            norm = code.names.value(call.func)
            if not isinstance(norm, ast.Call) or code.names.qualified(norm.func) not in _NORMS:
                continue
            given = _only_use(code, call.args[0])
            if not isinstance(given, ast.Call) or not isinstance(given.func, ast.Attribute):
                continue
            layer, name = code.names.value(given.func), given.func.attr
            mentions = [each for each in ast.walk(owner) if isinstance(each, ast.Attribute) and each.attr == name]
            if isinstance(layer, ast.Call) and sum(isinstance(each.ctx, ast.Load) for each in mentions) == 1:
                yield layer, norm


def _only_use(code: Code, node: ast.expr) -> ast.expr | None:
    """What a name was assigned, where nothing else reads that."""
    if not isinstance(node, ast.Name):
        return node
    bindings = code.names.bindings(node)
    others = [
        each
        for each in code.all(ast.Name)
        if each is not node and each.id == node.id and isinstance(each.ctx, ast.Load)
    ]
    if any({*map(id, code.names.bindings(each))} & {*map(id, bindings)} for each in others):
        return None
    return code.names.value(node)


RULE = SourceRule(
    code="H417",
    severity=Severity.SLIGHT,
    fix="pass bias=False to the layer before the batch norm",
    safety=Safety.UNSAFE,
    technique="conv_bn_bias",
    check=check,
)
