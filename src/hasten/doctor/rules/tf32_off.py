"""TF32 switched off.

What it finds: `allow_tf32 = False`, and `set_float32_matmul_precision("highest")`, under no condition.

Why it costs: Since Ampere, NVIDIA's tensor cores multiply float32 matrices in TF32, faster than float32 units. With
this setting, float32 products and convolutions cannot use them.

When to ignore it: Where float32 products need all their 24 bits: TF32 rounds factors to 11.

Fix: Set `allow_tf32 = True`, or `set_float32_matmul_precision("high")`.

Safety: Unsafe: products are rounded more.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hasten.doctor.edits import Replace
from hasten.doctor.reading.steps.process_switches import assigned, is_constant, stays
from hasten.doctor.rule import Code, Found, Safety, SourceRule

_SETTINGS = {
    "torch.backends.cuda.matmul.allow_tf32": "float32 matrix products cannot use the tensor cores",
    "torch.backends.cudnn.allow_tf32": "float32 convolutions cannot use the tensor cores",
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
            message = "float32 matrix products cannot use the tensor cores"
            yield Found(call, message, 'give "high"', (Replace(given, '"high"'),))


RULE = SourceRule(
    code="H308",
    fix="allow TF32 where eleven bits in each factor are enough",
    safety=Safety.UNSAFE,
    technique="precision",
    check=check,
)
