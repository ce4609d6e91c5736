"""Mixed precision in a file: its autocasts, and the scalers of its losses."""

from __future__ import annotations

import ast

from hasten.doctor.reading.names.argument_values import Unknown
from hasten.doctor.reading.source_code import Code

_OUTDATED = ("torch.cuda.amp.", "torch.cpu.amp.")
_AUTOCASTS = frozenset({"torch.autocast", "torch.amp.autocast", "torch.cuda.amp.autocast", "torch.cpu.amp.autocast"})


def outdated(code: Code, node: ast.AST) -> str | None:
    """What it is called in torch.cuda.amp or torch.cpu.amp: "autocast" and the like. None where it is of neither."""
    name = code.names.qualified(node) or ""
    return name.rpartition(".")[2] if name.startswith(_OUTDATED) else None


def entered_by(code: Code, node: ast.AST) -> list[ast.Call]:
    """The autocasts that a `with`, or a function's decorators, may enter."""
    entered = [item.context_expr for item in node.items] if isinstance(node, ast.With) else []
    calls = [call for each in entered or getattr(node, "decorator_list", []) for call in code.origins.calls(each)]
    made = [each for call in calls for each in (call, code.names.followed(call.func)) if isinstance(each, ast.Call)]
    return [each for each in made if code.names.qualified(each.func) in _AUTOCASTS]


def is_on(code: Code, autocast: ast.Call) -> bool:
    """Unless the file says that it is off. Where an option decides, it is meant to be on sometimes."""
    given = argument(code, autocast, "enabled")
    followed = None if isinstance(given, Unknown) else code.names.followed(given)
    return not (isinstance(followed, ast.Constant) and followed.value is False)


def argument(code: Code, autocast: ast.Call, name: str) -> ast.expr | Unknown:
    """enabled, or dtype, of an autocast of either kind."""
    called = code.names.qualified(autocast.func) or ""
    places = {"enabled": 0, "dtype": 1} if called.startswith(_OUTDATED) else {"dtype": 1, "enabled": 2}
    return code.values.argument(autocast, name, places[name])


def is_bfloat16(code: Code, autocast: ast.Call) -> bool:
    given = argument(code, autocast, "dtype")
    return not isinstance(given, Unknown) and code.names.qualified(given) == "torch.bfloat16"


def all_autocasts(code: Code) -> list[ast.Call]:
    """That a block or a function of the file enters."""
    kinds = (ast.With, ast.FunctionDef)
    entered = [call for kind in kinds for node in code.all(kind) for call in entered_by(code, node)]
    return [call for call in dict.fromkeys(entered) if is_on(code, call)]
