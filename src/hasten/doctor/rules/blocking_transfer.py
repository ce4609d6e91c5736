"""Blocking copy from pinned memory.

What it finds: `.to(device)` or `.cuda()` of a training batch in pinned memory, without `non_blocking=True`.

Why it matters: The host waits until the batch is on the device. With `non_blocking=True` the device queues
the copy, and Python continues with the forward pass.

Fix: Pass `non_blocking=True`.

    x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)

When to ignore: The host overwrites the batch right after the copy starts.

Automatic fix: Unsafe. If the host writes to the batch during the copy, the device may get the old or the new
values.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hasten.doctor.edits import AddArgument
from hasten.doctor.reading.names.argument_values import ABSENT
from hasten.doctor.reading.objects.data_loaders import MOVING, Loader
from hasten.doctor.rule import Code, Found, Preserves, Safety, SourceRule


def check(code: Code) -> Iterator[Found]:
    copied: dict[ast.Call, list[Loader]] = {}
    for loader in code.loaders:
        if loader.steps and _is_pinned(code, loader) and not loader.given_to & MOVING:
            for move in loader.moves:
                copied.setdefault(move, []).append(loader)
    for move, loaders in copied.items():
        if _waits(code, move) and _is_in_training(code, move):
            plain = all(each.constant("collate_fn") in {ABSENT, None} for each in loaders)
            edits = (AddArgument(move, "non_blocking=True"),) if plain else ()
            message = f"{ast.unparse(move)} blocks until the copy is done, although the batch is in pinned memory"
            yield Found(move, message, edits=edits)


def _is_pinned(code: Code, loader: Loader) -> bool:
    given = loader.argument("pin_memory")
    if not isinstance(given, ast.expr):
        return False
    followed = code.names.followed(given)
    if isinstance(followed, ast.Call):
        return code.names.qualified(followed.func) == "torch.cuda.is_available"
    return code.values.constant(given) is True


def _waits(code: Code, move: ast.Call) -> bool:
    """A second argument may be the flag: `.cuda(device, True)`."""
    return code.values.argument(move, "non_blocking") is ABSENT and len(move.args) <= 1


def _is_in_training(code: Code, move: ast.Call) -> bool:
    """Whether what it moves is computed with gradients; an evaluation waits for its results anyway."""
    ran = any(each.node is move for step in code.training.steps for each in step.ran)
    return ran and not code.training.runs_without_gradients(move)


RULE = SourceRule(
    code="H204",
    fix="pass non_blocking=True",
    safety=Safety.UNSAFE,
    preserves=Preserves.BITS,
    technique="device_prefetch",
    gpu_only=True,
    check=check,
)
