"""cuDNN benchmark mode switched off.

What it finds: `torch.backends.cudnn.benchmark = False`, under no condition.

Why it costs: When on, cuDNN times its algorithms once for each new size and keeps the fastest. When off, a heuristic
chooses.

When to ignore it: Where sizes change in each step, or where bits must be the same in every run. Beside
`deterministic = True` it is not reported.

Fix: Set it to True where sizes stay the same, and leave it off where they change.

Safety: Unsafe: another algorithm adds the same products in another order, and the last bits differ.
"""

from __future__ import annotations

from collections.abc import Iterator

from hasten.doctor.edits import Replace
from hasten.doctor.reading.steps.process_switches import assigned, is_constant, is_unconditional
from hasten.doctor.rule import Code, Found, Safety, SourceRule

_BENCHMARK = "torch.backends.cudnn.benchmark"
_DETERMINISTIC = "torch.backends.cudnn.deterministic"
_USE_DETERMINISTIC = ("torch.use_deterministic_algorithms", "torch.set_deterministic")


def check(code: Code) -> Iterator[Found]:
    settings = assigned(code, _BENCHMARK)
    for assignment, value in settings.items():
        is_off = is_unconditional(code, assignment) and is_constant(code, value, False)
        if is_off and len(settings) == 1 and not _is_deterministic(code):
            message = "cudnn.benchmark = False switches the search for the fastest convolution off"
            yield Found(assignment, message, edits=(Replace(value, "True"),))


def _is_deterministic(code: Code) -> bool:
    """Whether the file asks for it somewhere: then the search has to be off."""
    values = assigned(code, _DETERMINISTIC).values()
    return any(not is_constant(code, each, False) for each in values) or any(code.calls_to(*_USE_DETERMINISTIC))


RULE = SourceRule(
    code="H301",
    fix="set it to True where sizes stay the same, and leave it off where they change",
    safety=Safety.UNSAFE,
    technique="cudnn_autotune",
    check=check,
)
