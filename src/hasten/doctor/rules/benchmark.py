"""cudnn.benchmark off with fixed sizes, or on with changing sizes.

What it finds: `torch.backends.cudnn.benchmark = False`, and `= True` in a script whose steps resize the input
of convolutions to random sizes.

Why it matters: With `benchmark = True` cuDNN times its algorithms for each new input size and keeps the
fastest. With `False` it chooses by a heuristic. If the size keeps changing, `True` repeats the timing for
every new size.

Fix: Set it to `True` if input sizes are fixed, and to `False` if they change.

    torch.backends.cudnn.benchmark = True

When to ignore: Every run must give the same bits. A script that also asks for deterministic algorithms is not
reported.

Automatic fix: Unsafe. Another algorithm may sum in another order, so the last bits differ.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hasten.doctor.edits import Replace
from hasten.doctor.reading.steps.process_switches import assigned, is_constant, is_unconditional
from hasten.doctor.rule import Code, Found, Preserves, Safety, SourceRule

_BENCHMARK = "torch.backends.cudnn.benchmark"
_DETERMINISTIC = "torch.backends.cudnn.deterministic"
_USE_DETERMINISTIC = ("torch.use_deterministic_algorithms", "torch.set_deterministic")
_RESIZES = frozenset({"torch.nn.functional.interpolate", "torchvision.transforms.functional.resize"})
_RANDOM = ("random.", "numpy.random.", "torch.rand")


def check(code: Code) -> Iterator[Found]:
    settings = assigned(code, _BENCHMARK)
    changing = _changing_size(code) if settings else None
    for assignment, value in settings.items():
        if not is_unconditional(code, assignment):
            continue
        if is_constant(code, value, False) and len(settings) == 1 and not changing and not _is_deterministic(code):
            message = "cudnn.benchmark = False keeps cuDNN from choosing the fastest convolution algorithm"
            yield Found(assignment, message, "set it to True if input sizes are fixed", (Replace(value, "True"),))
        elif is_constant(code, value, True) and changing:
            line = changing.lineno
            message = f"cudnn.benchmark = True times algorithms for each new size; line {line} changes it every step"
            yield Found(assignment, message, "set it to False if input sizes change", (Replace(value, "False"),))


def _is_deterministic(code: Code) -> bool:
    """Whether the file asks for it somewhere: then the search has to be off."""
    values = assigned(code, _DETERMINISTIC).values()
    return any(not is_constant(code, each, False) for each in values) or any(code.calls_to(*_USE_DETERMINISTIC))


def _changing_size(code: Code) -> ast.expr | None:
    """What gives convolutions another size in each step."""
    if not any((code.names.qualified(call.func) or "").startswith("torch.nn.Conv") for call in code.all(ast.Call)):
        return None
    for step in code.training.steps:
        ran = {each.node for each in step.ran}
        for call in (each for each in ran if isinstance(each, ast.Call)):
            if code.names.qualified(call.func) in _RESIZES and any(map(ran.__contains__, _drawn(code, call))):
                return call
    return None


def _drawn(code: Code, resize: ast.Call) -> Iterator[ast.Call]:
    """The random numbers that its size comes from."""
    given = [*resize.args[1:], *(each.value for each in resize.keywords)]
    followed = [code.names.followed(each) or each for size in given for each in ast.walk(size)]
    for each in (part for size in followed for part in ast.walk(size)):
        if isinstance(each, ast.Call) and (code.names.qualified(each.func) or "").startswith(_RANDOM):
            yield each


RULE = SourceRule(
    code="H301",
    fix="set it to True if input sizes are fixed, and to False if they change",
    safety=Safety.UNSAFE,
    preserves=Preserves.ROUNDING,
    technique="cudnn_autotune",
    gpu_only=True,
    check=check,
)
