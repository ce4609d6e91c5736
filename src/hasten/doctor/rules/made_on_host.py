"""Tensor created on the host and then copied.

What it finds: `torch.zeros(…).to(device)` and similar calls, which fill a tensor on the host only to copy it.

Why it matters: The host fills memory and copies it to the device, and Python waits. With `device=` the device
fills its own memory. `torch.tensor` of Python numbers always copies from the host; `device=` saves one of its
two copies.

Fix: Pass `device=` to the function that creates the tensor.

    mask = torch.zeros(batch_size, device=device)

When to ignore: The random numbers must be those of the host's generator. A call that runs only once costs
microseconds; such calls come last in the list.

Automatic fix: Safe. The values are the same. Random tensors, `arange` and `linspace` may differ between
devices and are not changed.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hasten.doctor.edits import AddArgument, CutAfter
from hasten.doctor.reading.names.argument_values import ABSENT
from hasten.doctor.rule import Code, Found, Preserves, Safety, Severity, SourceRule

_RANDOM = frozenset({"torch.rand", "torch.randn", "torch.randint", "torch.randperm"})
_ROUNDED = frozenset({"torch.linspace", "torch.arange"})  # of floats, perhaps otherwise on another device
_MAKE = _RANDOM | {
    f"torch.{name}" for name in ("zeros", "ones", "full", "arange", "eye", "empty", "tensor", "linspace")
}
_OWN = ("device", "generator", "out", "pin_memory")  # arguments that say where it is made


def check(code: Code) -> Iterator[Found]:
    for call in code.methods("to", "cuda"):
        made = call.func.value if isinstance(call.func, ast.Attribute) else None
        name = code.names.qualified(made.func) if isinstance(made, ast.Call) else None
        if not isinstance(made, ast.Call) or name not in _MAKE or not _moves(code, call):
            continue
        if any(code.values.argument(made, each) is not ABSENT for each in _OWN):
            continue
        target = code.devices.target(call)
        device = '"cuda"' if target is None else ast.unparse(target)
        plain = len(call.args) <= 1 and _only(call, "device", "non_blocking") and _only(made, "dtype")
        is_number = getattr(call.func, "attr", "") == "cuda" and bool(call.args)  # None means the present device there
        exact = plain and not is_number and name not in _RANDOM and name not in _ROUNDED
        edits = (AddArgument(made, f"device={device}"), CutAfter(call, made)) if exact else ()
        severity = Severity.ONCE if code.training.runs_once(call) else None
        when = "" if severity is None else ", once before training"
        message = f"{ast.unparse(made.func)}(…) is created on the host and then copied to the device{when}"
        yield Found(call, message, f"pass device={device} to the function that creates it", edits, severity)


def _moves(code: Code, call: ast.Call) -> bool:
    """Whether it goes to an accelerator, or to where another tensor is."""
    target = code.devices.target(call)
    beside = isinstance(target, ast.Attribute) and target.attr == "device" and code.values.constant(target) != "cpu"
    return code.devices.is_move_to_some_device(call) or beside


def _only(call: ast.Call, *names: str) -> bool:
    return all(each.arg in names for each in call.keywords)


RULE = SourceRule(
    code="H203",
    severity=Severity.SLIGHT,
    fix="pass device= to the function that creates it",
    safety=Safety.SAFE,
    preserves=Preserves.BITS,
    gpu_only=True,
    check=check,
)
