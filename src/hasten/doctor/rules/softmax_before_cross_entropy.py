"""Softmax before a loss that includes it.

What it finds: `cross_entropy` of the output of softmax or log_softmax, `nll_loss` of a softmax, and
`binary_cross_entropy_with_logits` of a sigmoid. The activation is in the same function, or the last layer of
the model.

Why it matters: These losses expect logits (`nll_loss`: log-probabilities). A softmax of probabilities is
nearly flat, so the loss cannot approach zero, gradients are small, and the model learns slowly or not at all.
A second log_softmax changes no value, but takes time.

Fix: Pass logits to the loss, and apply softmax only where you need probabilities. For `nll_loss` use
log_softmax.

    logits = model(x)
    loss = F.cross_entropy(logits, y)
    probabilities = logits.softmax(dim=1)

When to ignore: Flat targets are intended.

Automatic fix: None. Other code may read the probabilities.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hasten.doctor.reading.objects.layer_calls import Layers
from hasten.doctor.rule import Code, Found, Severity, SourceRule

_MUST_NOT = {  # what its input must not have passed, and what to do
    "cross_entropy": (("softmax", "log_softmax"), "pass the logits, before the softmax"),
    "nll_loss": (("softmax",), "use log_softmax"),
    "binary_cross_entropy_with_logits": (("sigmoid",), "pass the logits, before the sigmoid"),
}
_OF_CLASS = {
    "torch.nn.CrossEntropyLoss": "cross_entropy",
    "torch.nn.NLLLoss": "nll_loss",
    "torch.nn.BCEWithLogitsLoss": "binary_cross_entropy_with_logits",
}
_LAYERS = {"Softmax": "softmax", "LogSoftmax": "log_softmax", "Sigmoid": "sigmoid"}
_ACTIVATIONS = frozenset(_LAYERS.values())
_LEAVE_VALUES = frozenset(
    {"view", "reshape", "squeeze", "unsqueeze", "float", "contiguous", "flatten", "permute", "transpose", "to", "cuda"}
)


def check(code: Code) -> Iterator[Found]:
    layers = Layers(code.names)
    for call in code.all(ast.Call):
        loss = _loss(code, call)
        given = code.values.argument(call, "input", 0)
        made = _activation(code, layers, given) if loss and isinstance(given, ast.expr) else None
        activations, fix = _MUST_NOT.get(loss, ((), ""))
        if made is not None and made[0] in activations:
            inside = code.names.enclosing(call, *_FUNCTIONS) is code.names.enclosing(made[1], *_FUNCTIONS)
            yield Found(call if inside else made[1], _message(loss, made[0]), fix)


def _loss(code: Code, call: ast.Call) -> str:
    name = code.names.qualified(call.func) or ""
    last = name.rpartition(".")[2]
    if name == f"torch.nn.functional.{last}" and last in _MUST_NOT:
        return last
    return _OF_CLASS.get(code.names.made_by(call.func) or "", "")


def _activation(code: Code, layers: Layers, given: ast.expr) -> tuple[str, ast.expr] | None:
    """What was computed last, where that is one, and its place."""
    for _ in range(_DEEPEST):
        for node in layers.output(given):
            name = _activates(code, node)
            if name:
                return name, node
            of = _same_values(node)
            if of is not None:
                given = of
                break
        else:
            return None
    return None


def _same_values(node: ast.expr) -> ast.expr | None:
    """What it takes rows of, or only shapes in another way."""
    match node:
        case ast.Subscript(base):
            return base
        case ast.Call(ast.Attribute(base, name)) if name in _LEAVE_VALUES:
            return base
        case _:
            return None


def _activates(code: Code, node: ast.expr) -> str:
    """Of a function, a method, or a layer: one that is made, or one that is called."""
    if not isinstance(node, ast.Call):
        return ""
    name = code.names.qualified(node.func) or ""
    last = name.rpartition(".")[2]
    if name in {f"torch.{last}", f"torch.nn.functional.{last}"} and last in _ACTIVATIONS:
        return last
    match node.func:
        case ast.Attribute(base, method) if not name and method in _ACTIVATIONS and code.names.class_of(base) is None:
            return method
    of_layer = name or code.names.made_by(node.func) or ""
    return _LAYERS.get(of_layer.removeprefix("torch.nn."), "") if of_layer.startswith("torch.nn.") else ""


def _message(loss: str, activation: str) -> str:
    if loss == "nll_loss":
        return "nll_loss expects log-probabilities, but gets the output of softmax"
    own = "sigmoid" if activation == "sigmoid" else "softmax"
    return f"{loss} applies {own} itself, but gets the output of {activation}"


_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_DEEPEST = 6

RULE = SourceRule(
    code="H412",
    severity=Severity.WRONG,
    fix="pass the logits to the loss",
    check=check,
)
