"""Gradients clipped at the wrong place.

What it finds: `clip_grad_norm_` or `clip_grad_value_` before `backward()`, after `optimizer.step()`, or while
a GradScaler still scales the gradients.

Why it matters: Before `backward()` the gradients do not exist yet. After `step()` the optimizer has used them
unclipped. Scaled gradients are many times larger, so the limit cuts nearly all of them.

Fix: Clip after `unscale_()` and before `step()`.

    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()

When to ignore: The gradients of an earlier iteration are meant.

Automatic fix: None. It changes training.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hasten.doctor.reading.objects.optimizer_roles import Role
from hasten.doctor.reading.steps.optimizer_events import Action, Event
from hasten.doctor.rule import Code, Found, Severity, SourceRule

_OF_GRADIENTS = (Action.BACKWARD, Action.UPDATE, Action.CLEAR, Action.REWRITE, Action.UNSCALE, Action.TOUCH)
_COMPUTED_AND_USED = (Action.BACKWARD, Action.UPDATE)


def check(code: Code) -> Iterator[Found]:
    seen = set[ast.AST]()
    for turn in code.updates.turns:
        for clip in turn.of(Action.CLIP):
            if clip.node in seen or not turn.of(Action.BACKWARD):
                continue
            seen.add(clip.node)
            before = [each for each in turn.before(clip, *_OF_GRADIENTS) if each.may_meet(clip)]
            after = [each for each in turn.after(clip, *_OF_GRADIENTS) if each.may_meet(clip)]
            if any(each.action in {Action.TOUCH, Action.REWRITE} for each in before + after):
                continue
            if wrong := _out_of_order(before, after):
                yield Found(clip.node, wrong, fix="clip between backward() and step()")
            elif scaled := _still_scaled(code, before, after):
                yield Found(clip.node, scaled[0], fix=scaled[1])


def _out_of_order(before: list[Event], after: list[Event]) -> str:
    done = [each.action for each in before if each.action in _COMPUTED_AND_USED]
    following = next((each.action for each in after if each.action in _COMPUTED_AND_USED), None)
    if not done and following is Action.BACKWARD:
        return "gradients are clipped before backward() computes them"
    if Action.BACKWARD in done and done[-1] is Action.UPDATE and following is not Action.UPDATE:
        return "gradients are clipped after the optimizer step has used them"
    return ""


def _still_scaled(code: Code, before: list[Event], after: list[Event]) -> tuple[str, str] | None:
    backwards = [each for each in before if each.action is Action.BACKWARD]
    scaler = _scaler(code, backwards[-1].node) if backwards else None
    if scaler is None:
        return None
    update = next((each for each in after if each.action is Action.UPDATE), None)
    optimizers = code.updates.optimizers
    for each in before:
        other = update is not None and optimizers.is_distinct(each.target, update.target)
        if each.action is Action.UNSCALE and not other:
            return None
    optimizer = ast.unparse(update.target) if update is not None and update.target is not None else "optimizer"
    scales = ast.unparse(scaler)
    return f"gradients are clipped while {scales} still scales them", f"call {scales}.unscale_({optimizer}) before it"


def _scaler(code: Code, backward: ast.AST) -> ast.expr | None:
    """Of `scaler.scale(loss).backward()`; None of one that is off."""
    match backward:
        case ast.Call(ast.Attribute(ast.Call(ast.Attribute(scaler, "scale")))):
            making = code.names.making(scaler)
            is_off = making is not None and code.values.constant_argument(making, "enabled") is False
            return scaler if not is_off and code.updates.optimizers.role(scaler) is Role.SCALER else None
        case _:
            return None


RULE = SourceRule(
    code="H405",
    severity=Severity.WRONG,
    fix="clip between backward() and step(), and after unscale_() if a scaler is used",
    technique="clipping",
    check=check,
)
