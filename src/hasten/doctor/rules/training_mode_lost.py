"""Training in evaluation mode after an evaluation.

What it finds: `model.eval()` in an epoch loop, or in a function that is called there, with no `model.train()` before
the next training step. Parts of a model that stay in that mode on purpose are not reported: those that are set to it
straight before training.

Why it costs: From the second epoch on, dropout is off, and batch norm uses the statistics of the first and no longer
updates them. The model trains differently, and nothing says so.

When to ignore it: Where the model has neither dropout nor batch norm.

Fix: Call `model.train()` where each epoch of training begins.

Safety: Nothing is changed by itself: where training begins, only a person knows for sure.
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
        yield Found(call, f"{model}.eval() stays on when training continues")


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
    fix="call train() of it again before the next epoch trains",
    check=check,
)
