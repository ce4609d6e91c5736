"""Which modules compute one thing in training mode, and another in evaluation mode: those of dropout or batch norm."""

from __future__ import annotations

import ast
import re

from hasten.doctor.reading.names.constants import ABSENT
from hasten.doctor.reading.source_code import Code

_LAYERS = re.compile(r"^torch\.nn\.((?:Alpha|FeatureAlpha)?Dropout(?:1d|2d|3d)?|(?:Lazy|Sync)?BatchNorm(?:1d|2d|3d)?)$")
_WITH_OPTION = re.compile(r"^torch\.nn\.(LSTM|GRU|RNN|MultiheadAttention|Transformer\w*)$")
_OF_TORCHVISION = re.compile(
    r"^torchvision\.models\.(\w+\.)?((?:wide_)?resne[x]?t\w*|densenet\w+|mobilenet\w+|efficientnet\w+|vgg\w+|alexnet|inception\w+"
    r"|googlenet|mnasnet\w+|shufflenet\w+|regnet\w+|squeezenet\w+)$"
)


def layer_of_modes(code: Code, making: ast.Call) -> str | None:
    """The name of such a layer in what this call makes, "Dropout"; None where none is visible."""
    return next((name for each in _calls(code, making) if (name := _name(code, each)) is not None), None)


def _calls(code: Code, making: ast.Call) -> list[ast.Call]:
    """All that may run when it does, and when what it makes is made: classes of the file with their bases."""
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
            for name in named:
                inner = code.names.class_named(name) or code.names.function_named(name)
                waiting += [inner] if inner is not None else []
    return found


def _name(code: Code, call: ast.Call) -> str | None:
    name = code.names.qualified(call.func) or ""
    layer = _LAYERS.match(name)
    if layer is not None:
        first = code.values.constant_argument(call, "p", 0) if "Dropout" in name else ABSENT
        return None if first == 0 else layer.group(1)
    if name.startswith("torch.nn.functional.") and name.endswith(("dropout", "dropout2d")):
        training = code.values.argument(call, "training")
        return "dropout" if isinstance(training, ast.Attribute) else None
    option = _WITH_OPTION.match(name)
    if option is not None:
        given = code.values.constant_argument(call, "dropout")
        on_by_itself = option.group(1).startswith("Transformer") and not option.group(1).endswith(
            ("Encoder", "Decoder")
        )
        return "dropout" if (given is ABSENT and on_by_itself) or given not in {ABSENT, 0} else None
    return "batch norm or dropout" if _OF_TORCHVISION.match(name) else None
