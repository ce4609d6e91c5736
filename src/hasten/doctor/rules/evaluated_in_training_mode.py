"""Evaluation in training mode.

What it finds: A loop over a loader, in a file that trains, that calls the model and never `backward()`. The
model has dropout or batch norm and is still in training mode.

Why it matters: Dropout stays active, so the score is too low and varies. Batch norm uses the statistics of
the batch, so a prediction depends on the other samples. It also adds the evaluation data to its running
statistics.

Fix: Switch the mode before the loop, and switch back before training continues.

    model.eval()
    for x, y in valid_loader:
        ...
    model.train()

When to ignore: Dropout is meant to sample (Monte Carlo dropout), or batch norm is meant to see the data once
more.

Automatic fix: None. Scores would not be comparable with earlier ones.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from hasten.doctor.reading.names.argument_values import ABSENT
from hasten.doctor.reading.steps.model_modes import Mode
from hasten.doctor.rule import Code, Found, Severity, SourceRule

_LAYERS = re.compile(r"^torch\.nn\.((?:Alpha|FeatureAlpha)?Dropout(?:1d|2d|3d)?|(?:Lazy|Sync)?BatchNorm(?:1d|2d|3d)?)$")
_OF_TORCHVISION = re.compile(r"^torchvision\.models\.(\w+\.)?(?!vit_)[a-z]\w+$")


def check(code: Code) -> Iterator[Found]:
    seen = set[ast.AST]()
    for each in code.evaluations.all:
        if each.call in seen or each.modes.before(each.model, each.index) is not Mode.TRAIN:
            continue
        calls = [call for made in each.model if isinstance(made, ast.Call) for call in _calls(code, made)]
        layer = next(filter(None, (_name(code, call) for call in calls)), None)
        if layer is not None:
            seen.add(each.call)
            message = f"{ast.unparse(each.call.func)}(…) is evaluated in training mode, with {layer} active"
            yield Found(each.call, message)


def _calls(code: Code, making: ast.Call) -> list[ast.Call]:
    """All that may run when it does, and when what it makes is called: classes of the file with their bases."""
    found, waiting, seen = list[ast.Call](), list[ast.AST]([making]), set[ast.AST]()
    while waiting:
        node = waiting.pop()
        if node in seen:
            continue
        seen.add(node)
        for each in ast.walk(node):
            if isinstance(each, ast.Call):
                found.append(each)
            named = [each.func] if isinstance(each, ast.Call) else each.bases if isinstance(each, ast.ClassDef) else []
            inner = [code.names.class_named(name) or code.names.function_named(name) for name in named]
            waiting += [each for each in inner if each is not None]
    return found


def _name(code: Code, call: ast.Call) -> str | None:
    """Of the layer of dropout or batch norm that it makes, "Dropout"; None of another."""
    name = code.names.qualified(call.func) or ""
    if layer := _LAYERS.match(name):
        rate = code.values.constant_argument(call, "p", 0) if "Dropout" in name else ABSENT
        return None if rate == 0 else layer.group(1)
    if name.startswith("torch.nn.functional.") and name.endswith("dropout"):
        return "dropout" if isinstance(code.values.argument(call, "training"), ast.Attribute) else None
    return "batch norm or dropout" if _OF_TORCHVISION.match(name) else None


RULE = SourceRule(
    code="H414",
    severity=Severity.WRONG,
    fix="call model.eval() before the loop, and model.train() before training continues",
    check=check,
)
