"""An evaluation with dropout on, or with batch norm that learns.

What it finds: A loop over the batches of a loader that calls a model and never goes backward, in a file that trains,
where the model has dropout or batch norm and is still in training mode.

Why it costs: Dropout leaves out other units in each call, so the score is worse than the model, and another each time.
Batch norm divides by the variance of the batch at hand, so that a prediction depends on its neighbours; and it takes
the evaluation's data into its running statistics.

When to ignore it: Where dropout is meant to sample (Monte Carlo dropout), or batch norm to see the data once more.

Fix: Call `model.eval()` before the loop, and `model.train()` before training goes on.

Safety: Nothing is changed by itself: what was measured before would not be comparable.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hasten.doctor.reading.source_code import Code
from hasten.doctor.reading.steps.layers_of_modes import layer_of_modes
from hasten.doctor.reading.steps.model_modes import Mode
from hasten.doctor.rule import Found, SourceRule
from hasten.facts.finding import Severity


def check(code: Code) -> Iterator[Found]:
    seen = set[ast.AST]()
    for each in code.evaluations.all:
        if each.call in seen or each.modes.before(each.model, each.index) is not Mode.TRAIN:
            continue
        layers = [layer_of_modes(code, made) for made in each.model if isinstance(made, ast.Call)]
        layer = next((layer for layer in layers if layer is not None), None)
        if layer is not None:
            seen.add(each.call)
            yield Found(each.call, f"{ast.unparse(each.call.func)} has {layer}, and is evaluated in training mode")


RULE = SourceRule(
    code="H414",
    name="evaluated_in_training_mode",
    severity=Severity.WRONG,
    fix="call its eval() before the loop, and its train() before training goes on",
    check=check,
)
