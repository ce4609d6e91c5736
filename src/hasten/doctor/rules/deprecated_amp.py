"""Deprecated torch.cuda.amp and torch.cpu.amp.

What it finds: `autocast`, `GradScaler`, `custom_fwd` and `custom_bwd` of `torch.cuda.amp` and
`torch.cpu.amp`. Code that chooses between the old and the new name is not reported.

Why it matters: The old names are deprecated since torch 2.4. Each use warns, and a later release may remove
them.

Fix: Use `torch.amp`, and pass the device.

    with torch.amp.autocast("cuda"):
        loss = criterion(model(x), y)

When to ignore: The code must run on older versions: `torch.amp` has `GradScaler` since 2.3 and `custom_fwd`
since 2.4.

Automatic fix: Safe. The old name calls the new one with the same arguments.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hasten.doctor.edits import AddArgument, Edit, Replace
from hasten.doctor.reading.names.scopes import Kind
from hasten.doctor.reading.source_code import is_main
from hasten.doctor.reading.steps.autocast_use import outdated
from hasten.doctor.rule import Code, Found, Safety, Severity, SourceRule

_FIRST = {"autocast": "device_type", "GradScaler": "device", "custom_fwd": "device_type", "custom_bwd": "device_type"}


def check(code: Code) -> Iterator[Found]:
    decorators = [each for node in code.all(ast.FunctionDef) for each in node.decorator_list]
    for use in (*code.all(ast.Call), *(each for each in decorators if not isinstance(each, ast.Call))):
        named = use.func if isinstance(use, ast.Call) else use
        name = outdated(code, named)
        if name in _FIRST and not _has_new_beside(code, use, name):
            old = code.names.qualified(named) or ""
            device = old.split(".")[1]
            message = f"{old} is deprecated since torch 2.4"
            yield Found(use, message, f'use torch.amp.{name}("{device}")', _edits(code, use, name, device))


def _has_new_beside(code: Code, use: ast.expr, name: str) -> bool:
    """Whether the function or condition around it names the new one too: it chooses by the version of torch."""
    news = {f"torch.amp.{name}"} | ({"torch.autocast"} if name == "autocast" else set())
    kinds = (ast.If, ast.IfExp, ast.Try, ast.FunctionDef)
    around = [each for each in code.names.around(use) if isinstance(each, kinds) and not is_main(each)]
    return any(code.names.qualified(each) in news for each in (ast.walk(around[-1]) if around else ()))


def _edits(code: Code, use: ast.expr, name: str, device: str) -> tuple[Edit, ...]:
    """None where arguments are given by their place, or hidden by a star, or where `torch` may be something else."""
    if not _has_torch(code, use) or (name == "GradScaler" and any(code.calls_to("builtins.isinstance"))):
        return ()  # the old scaler is one of the new kind, and not the other way round
    if not isinstance(use, ast.Call):
        return (Replace(use, f'torch.amp.{name}(device_type="{device}")'),)
    if use.args or any(each.arg is None for each in use.keywords):
        return ()
    given = f'{_FIRST[name]}="{device}"' if use.keywords else f'"{device}"'
    return (Replace(use.func, f"torch.amp.{name}"), AddArgument(use, given))


def _has_torch(code: Code, use: ast.expr) -> bool:
    """Whether `torch` means the package, everywhere in the file and before this."""
    bindings = code.scopes.module.bindings.get("torch", [])
    imports = bool(bindings) and all(each.kind is Kind.IMPORT and each.imported == "torch" for each in bindings)
    above = imports and bindings[0].since <= (use.lineno, use.col_offset) and not code.is_conditional(bindings[0].node)
    return above and not any(each.arg == "torch" for each in code.all(ast.arg))


RULE = SourceRule(
    code="H408",
    severity=Severity.STYLE,
    fix="use torch.amp, and pass the device",
    safety=Safety.SAFE,
    check=check,
)
