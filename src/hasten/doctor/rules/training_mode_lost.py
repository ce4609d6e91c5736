"""Training that continues in evaluation mode.

What it finds: `model.eval()` in a loop over epochs, or in a function that it calls, without `model.train()`
before the next training step. Parts of a model that are set to evaluation mode directly before training are
not reported.

Why it matters: From the second epoch on, dropout is off, and batch norm uses its running statistics and does
not update them. Nothing warns about it.

Fix: Call `model.train()` at the start of every training epoch.

    for epoch in range(epochs):
        model.train()
        for x, y in train_loader:
            train_step(x, y)
        evaluate(model, valid_loader)  # calls model.eval()

When to ignore: The model has neither dropout nor batch norm.

Automatic fix: None. Only you know for certain where training begins.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hasten.doctor.reading.steps.model_modes import Mode, Modes, may_be
from hasten.doctor.reading.steps.timelines import Identity
from hasten.doctor.rule import Code, Found, Severity, SourceRule


def check(code: Code) -> Iterator[Found]:
    if not code.training.steps or not any(code.methods("eval", "train")):
        return
    optimized = frozenset[Identity]().union(*(modes.optimized for modes in code.evaluations.modes))
    found = dict.fromkeys(call for modes in code.evaluations.modes for call in _lost(modes, optimized))
    for call in found:
        model = ast.unparse(call.func.value if isinstance(call.func, ast.Attribute) else call)
        yield Found(call, f"training continues after {model}.eval(), without {model}.train()")


def _lost(modes: Modes, optimized: frozenset[Identity]) -> Iterator[ast.Call]:
    """optimized: what training may change; all else stays in its mode on purpose."""
    evaluated = [
        each for each in modes.switches.values() if each.mode is Mode.EVAL and modes.moments[each.index].loops()
    ]
    seen = set[tuple[ast.AST, frozenset[Identity]]]()
    for index, used in modes.trained() if evaluated else ():
        objects = used & frozenset[Identity]().union(*(each.objects for each in evaluated))
        key = (modes.moments[index].loops()[0], objects) if modes.moments[index].loops() else None
        if not objects or key is None or key in seen:
            continue
        seen.add(key)
        for each in objects:
            switch = modes.last_in_turn(frozenset({each}), index)
            if switch is not None and may_be(switch.objects, optimized):
                yield switch.call


RULE = SourceRule(
    code="H415",
    severity=Severity.WRONG,
    fix="call train() at the start of every training epoch",
    check=check,
)
