"""cuDNN benchmark mode, off with fixed sizes or on with varying ones.

What it finds: `torch.backends.cudnn.benchmark = False`, and `= True` where each step resizes what convolutions get.

Why it costs: When on, cuDNN times its algorithms once for each new size and keeps the fastest. When off, a heuristic
chooses. With sizes that change, it searches again for every new one.

When to ignore it: Where bits must be the same in every run. Beside `deterministic = True` it is not reported.

Fix: Set it to True where sizes stay the same, and leave it off where they change.

Safety: Unsafe: another algorithm adds the same products in another order, and the last bits differ.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hasten.doctor.edits import Replace
from hasten.doctor.reading.steps.process_switches import assigned, is_constant, is_unconditional
from hasten.doctor.rule import Code, Found, Safety, SourceRule

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
            message = "cudnn.benchmark = False switches the search for the fastest convolution off"
            yield Found(assignment, message, "set it to True where sizes stay the same", (Replace(value, "True"),))
        elif is_constant(code, value, True) and changing:
            message = (
                f"line {changing.lineno} changes the size in each step, and cuDNN searches again for each new size"
            )
            yield Found(assignment, message, "leave it off where sizes change", (Replace(value, "False"),))


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
    fix="set it to True where sizes stay the same, and leave it off where they change",
    safety=Safety.UNSAFE,
    technique="cudnn_autotune",
    check=check,
)
