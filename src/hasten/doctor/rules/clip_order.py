"""Gradients clipped at the wrong place.

What it finds: `clip_grad_norm_` or `clip_grad_value_` of gradients that a GradScaler still scales, after
`optimizer.step()`, or before `backward()`.

Why it costs: A scaled gradient is many times as large, so the limit cuts nearly all of it. After `step()` the optimizer
has used the gradients unclipped; before `backward()` they are not there yet.

When to ignore it: Where the gradients of an earlier turn are meant.

Fix: In this order: `scaler.scale(loss).backward()`, `scaler.unscale_(optimizer)`, the clip, `scaler.step(optimizer)`.

Safety: Nothing is changed by itself: it changes what is learned.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hasten.doctor.reading.objects.optimizer_roles import Role
from hasten.doctor.reading.steps.optimizer_events import Action, Event
from hasten.doctor.rule import Code, Found, Severity, SourceRule

_OF_GRADIENTS = (Action.BACKWARD, Action.UPDATE, Action.CLEAR, Action.REWRITE, Action.UNSCALE, Action.TOUCH)


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
            wrong = _too_early(before, after) or _too_late(before, after) or _still_scaled(code, clip, before, after)
            if wrong is not None:
                yield Found(clip.node, wrong[0], fix=wrong[1])


def _too_early(before: list[Event], after: list[Event]) -> tuple[str, str] | None:
    if any(each.action in {Action.BACKWARD, Action.UPDATE} for each in before):
        return None
    following = next((each for each in after if each.action in {Action.BACKWARD, Action.UPDATE}), None)
    if following is None or following.action is not Action.BACKWARD:
        return None
    return "gradients are clipped before backward() has computed them", "clip between backward() and step()"


def _too_late(before: list[Event], after: list[Event]) -> tuple[str, str] | None:
    computed = max((number for number, each in enumerate(before) if each.action is Action.BACKWARD), default=None)
    if computed is None or not any(each.action is Action.UPDATE for each in before[computed:]):
        return None
    following = next((each for each in after if each.action in {Action.BACKWARD, Action.UPDATE}), None)
    if following is not None and following.action is Action.UPDATE:
        return None
    return "gradients are clipped after the optimizer has used them", "clip between backward() and step()"


def _still_scaled(code: Code, clip: Event, before: list[Event], after: list[Event]) -> tuple[str, str] | None:
    backwards = [each for each in before if each.action is Action.BACKWARD]
    scaler = _scaler(code, backwards[-1].node) if backwards else None
    if scaler is None or _is_off(code, scaler):
        return None
    update = next((each for each in after if each.action is Action.UPDATE), None)
    optimizers = code.updates.optimizers
    for each in before:
        other = update is not None and optimizers.is_distinct(each.target, update.target)
        if each.action is Action.UNSCALE and not other:
            return None
    optimizer = ast.unparse(update.target) if update is not None and update.target is not None else "optimizer"
    scales = ast.unparse(scaler)
    return f"the gradients are still scaled by {scales}", f"call {scales}.unscale_({optimizer}) before it"


def _scaler(code: Code, backward: ast.AST) -> ast.expr | None:
    """Of `scaler.scale(loss).backward()`."""
    match backward:
        case ast.Call(ast.Attribute(ast.Call(ast.Attribute(scaler, "scale")))):
            return scaler if code.updates.optimizers.role(scaler) is Role.SCALER else None
        case _:
            return None


def _is_off(code: Code, scaler: ast.expr) -> bool:
    making = code.names.making(scaler)
    return making is not None and code.values.constant_argument(making, "enabled") is False


RULE = SourceRule(
    code="H405",
    severity=Severity.WRONG,
    fix="clip between backward() and step(), and after unscale_() where a scaler is in use",
    technique="clipping",
    check=check,
)
