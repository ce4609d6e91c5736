"""Mixed precision in a file: its autocasts, and the scalers of its losses."""

from __future__ import annotations

import ast

from hasten.doctor.reading.names.argument_values import Unknown
from hasten.doctor.reading.source_code import Code
from hasten.doctor.reading.steps.training_steps import Step

_OUTDATED = ("torch.cuda.amp.", "torch.cpu.amp.")
_AUTOCASTS = frozenset({"torch.autocast", "torch.amp.autocast", "torch.cuda.amp.autocast", "torch.cpu.amp.autocast"})
_SCALERS = frozenset(
    {"torch.amp.GradScaler", "torch.cuda.amp.GradScaler", "torch.cpu.amp.GradScaler",
     "torch.distributed.fsdp.sharded_grad_scaler.ShardedGradScaler"}
)  # fmt: skip


def outdated(code: Code, node: ast.AST) -> str | None:
    """What it is called in torch.cuda.amp or torch.cpu.amp: "autocast" and the like. None where it is of neither."""
    name = code.names.qualified(node) or ""
    return name.rpartition(".")[2] if name.startswith(_OUTDATED) else None


def entered_by(code: Code, node: ast.AST) -> list[ast.Call]:
    """The autocasts that a `with`, or a function's decorators, may enter."""
    entered = [item.context_expr for item in node.items] if isinstance(node, ast.With) else []
    calls = [call for each in entered or getattr(node, "decorator_list", []) for call in code.origins.calls(each)]
    made = [each for call in calls for each in (call, code.names.followed(call.func)) if isinstance(each, ast.Call)]
    return [each for each in made if _makes_autocast(code, each)]


def _makes_autocast(code: Code, call: ast.Call) -> bool:
    """Also `partial(torch.autocast, …)`."""
    name = code.names.qualified(call.func)
    given = call.args[0] if name == "functools.partial" and call.args else None
    return name in _AUTOCASTS or code.names.qualified(given) in _AUTOCASTS


def is_on(code: Code, autocast: ast.Call) -> bool:
    """Unless the file says that it is off. Where an option decides, it is meant to be on sometimes."""
    given = argument(code, autocast, "enabled")
    followed = None if isinstance(given, Unknown) else code.names.followed(given)
    return not (isinstance(followed, ast.Constant) and followed.value is False)


def argument(code: Code, autocast: ast.Call, name: str) -> ast.expr | Unknown:
    """enabled, or dtype, of an autocast of either kind; in a partial() of one, by its name."""
    called = code.names.qualified(autocast.func) or ""
    places = {"enabled": 0, "dtype": 1} if called.startswith(_OUTDATED) else {"dtype": 1, "enabled": 2}
    return code.values.argument(autocast, name, places[name] if called in _AUTOCASTS else None)


def is_bfloat16(code: Code, autocast: ast.Call) -> bool:
    given = argument(code, autocast, "dtype")
    return not isinstance(given, Unknown) and code.names.qualified(given) == "torch.bfloat16"


def scalers(code: Code) -> list[ast.Call]:
    """The calls that make one, in the order of the file."""
    return code.calls_to(*_SCALERS)


def steps_of(code: Code, scaler: ast.Call) -> list[Step]:
    """Those whose losses it surely scales."""
    only = len(scalers(code)) == 1
    found = list[Step]()
    for step in code.training.steps:
        for each in step.methods("scale"):
            base = each.node.func.value  # pyright: ignore[reportAttributeAccessIssue]
            making = code.names.making(base)
            if making is scaler or (making is None and only and "scaler" in ast.unparse(base).lower()):
                found.append(step)
    return found


def autocasts_of(code: Code, step: Step) -> list[ast.Call]:
    """Under which it computes its loss, through the functions that it calls."""
    ran = [each for each in step.ran if not code.training.is_without_gradients(each.around)]
    around = dict.fromkeys(outer for each in ran for outer, _ in each.around)
    return [call for node in around for call in entered_by(code, node) if is_on(code, call)]


def all_autocasts(code: Code) -> list[ast.Call]:
    """That a block or a function of the file enters."""
    kinds = (ast.With, ast.FunctionDef)
    entered = [call for kind in kinds for node in code.all(kind) for call in entered_by(code, node)]
    return [call for call in dict.fromkeys(entered) if is_on(code, call)]
