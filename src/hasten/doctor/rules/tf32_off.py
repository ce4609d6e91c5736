"""TF32 switched off.

What it finds: `allow_tf32 = False` of cuBLAS or cuDNN, and `torch.set_float32_matmul_precision("highest")`,
under no condition.

Why it matters: NVIDIA tensor cores since Ampere multiply float32 matrices in TF32, faster than the float32
units. With this setting float32 matrix products or convolutions cannot use them.

Fix: Allow TF32.

    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.allow_tf32 = True

When to ignore: Products need the full float32 precision. TF32 rounds each factor to 11 significant bits,
float32 has 24.

Automatic fix: Unsafe. Products are rounded more.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hasten.doctor.edits import Replace
from hasten.doctor.reading.steps.process_switches import assigned, is_constant, stays
from hasten.doctor.rule import Code, Found, Preserves, Safety, Severity, SourceRule

_SETTINGS = {
    "torch.backends.cuda.matmul.allow_tf32": "allow_tf32 = False keeps float32 matrix products off the tensor cores",
    "torch.backends.cudnn.allow_tf32": "allow_tf32 = False keeps float32 convolutions off the tensor cores",
}


def check(code: Code) -> Iterator[Found]:
    seen = set[ast.Assign]()  # one may set both
    for name, message in _SETTINGS.items():
        settings = assigned(code, name)
        for assignment, value in settings.items():
            if assignment in seen:
                continue
            seen.add(assignment)
            if is_constant(code, value, False) and stays(code, assignment, [*settings]):
                yield Found(assignment, message, "set it to True", (Replace(value, "True"),))
    calls = [*code.calls_to("torch.set_float32_matmul_precision")]
    for call in calls:
        given = code.values.argument(call, "precision", 0)
        if isinstance(given, ast.Constant) and given.value == "highest" and stays(code, call, [*calls]):
            message = f"{ast.unparse(call)} keeps float32 matrix products off the tensor cores"
            yield Found(call, message, 'give "high"', (Replace(given, '"high"'),))


RULE = SourceRule(
    code="H308",
    severity=Severity.COSTLY,
    fix="allow TF32 if 11 significant bits per factor are enough",
    safety=Safety.UNSAFE,
    preserves=Preserves.STATISTICS,
    technique="precision",
    gpu_only=True,
    check=check,
)
