"""A schedule that is stepped in another unit than it counts in.

What it finds: `OneCycleLR`, which counts batches, stepped once an epoch; `ReduceLROnPlateau.step()` without the metric
that it waits for; and a schedule whose numbers are those of epochs (StepLR, MultiStepLR, ExponentialLR) stepped after
each batch.

Why it costs: Stepped too seldom, the learning rate stays where the schedule begins. Stepped for each batch, a schedule
of epochs is over before the first epoch is. Without a metric, ReduceLROnPlateau raises an error.

When to ignore it: Where an epoch has a single batch.

Fix: Move `step()` into the loop over batches, or out of it; give ReduceLROnPlateau what it is to watch.

Safety: Nothing is changed by itself: it changes what is learned.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hasten.doctor.reading.names.constants import Unknown
from hasten.doctor.reading.source_code import Code
from hasten.doctor.reading.steps.optimizer_events import Action
from hasten.doctor.reading.steps.scheduler_steps import Schedule
from hasten.doctor.reading.steps.training_steps import Loop
from hasten.doctor.rule import Found, SourceRule
from hasten.facts.finding import Severity

_OF_EPOCHS = ("StepLR", "MultiStepLR", "ExponentialLR")
_LEAST_DECAY = 0.95  # of a rate multiplied by it for each of a thousand batches, 5e-23 is left


def check(code: Code) -> Iterator[Found]:
    for call in code.methods("step"):
        assert isinstance(call.func, ast.Attribute)
        made = code.updates.optimizers.made(call.func.value)
        if made == "torch.optim.lr_scheduler.ReduceLROnPlateau" and not call.args and not call.keywords:
            name = ast.unparse(call.func.value)
            yield Found(call, f"{name} is not told the metric that it waits for", fix="give it the loss or the metric")
    for schedule in code.schedules.stepped("OneCycleLR"):
        if _is_of_epoch(code, schedule) and _counts_batches(code, schedule):
            name = ast.unparse(schedule.event.target or schedule.call)
            yield Found(
                schedule.call, f"{name} counts batches, and steps once an epoch", fix="step it after each batch"
            )
    for kind in _OF_EPOCHS:
        for schedule in code.schedules.stepped(kind):
            if _is_of_batch(code, schedule) and _counts_epochs(code, schedule):
                name = ast.unparse(schedule.event.target or schedule.call)
                yield Found(
                    schedule.call, f"{name} counts epochs, and steps for each batch", fix="step it once an epoch"
                )


def _is_of_epoch(code: Code, schedule: Schedule) -> bool:
    """Whether its loop is around one that updates, and it stands outside of that."""
    if len(schedule.loops) != 1 or any(isinstance(each, ast.If) for each, _ in schedule.around):
        return False
    turn = next(turn for turn in code.updates.turns if turn.node is schedule.loops[0])
    updates = turn.of(Action.UPDATE)
    return bool(updates) and all(any(isinstance(each, Loop) for each, _ in update.around) for update in updates)


def _counts_batches(code: Code, schedule: Schedule) -> bool:
    amounts = code.schedules.amounts
    total = code.values.argument(schedule.making, "total_steps", 2)
    steps = code.values.argument(schedule.making, "steps_per_epoch", 4)
    if isinstance(steps, ast.expr):
        found = amounts.of(steps)
        return found is not None and (bool(found.lengths) or (not found.factors and found.number > 1))
    found = None if isinstance(total, Unknown) else amounts.of(total)
    return found is not None and bool(found.lengths)


def _is_of_batch(code: Code, schedule: Schedule) -> bool:
    """Whether each batch steps it, in a loop over a loader within a loop over epochs."""
    if len(schedule.loops) != 2 or any(isinstance(each, ast.If) for each, _ in schedule.around):
        return False
    epochs, batches = (code.schedules.amounts.turns(each) for each in schedule.loops)
    loop = schedule.loops[1]
    reads = isinstance(loop, ast.For) and batches is not None and bool(batches.lengths)
    inside = {update.node for turn in code.updates.turns if turn.node is loop for update in turn.of(Action.UPDATE)}
    return reads and epochs is not None and not epochs.lengths and bool(inside)


def _counts_epochs(code: Code, schedule: Schedule) -> bool:
    """Whether its numbers fall within the epochs of the loop, and would fall within the first batches."""
    epochs = code.values.constant(_stop(schedule))
    making = schedule.making
    if schedule.kind == "ExponentialLR":
        gamma = code.values.constant_argument(making, "gamma", 1)
        return isinstance(gamma, float) and gamma <= _LEAST_DECAY
    if not isinstance(epochs, int) or epochs < 2:
        return False
    if schedule.kind == "StepLR":
        size = code.values.constant_argument(making, "step_size", 1)
        return isinstance(size, int) and size <= epochs
    given = code.values.argument(making, "milestones", 1)
    followed = None if isinstance(given, Unknown) else code.names.followed(given)
    milestones = (
        [code.values.constant(each) for each in followed.elts] if isinstance(followed, ast.List | ast.Tuple) else []
    )
    return bool(milestones) and all(isinstance(each, int) and each <= epochs for each in milestones)


def _stop(schedule: Schedule) -> ast.expr | None:
    """Of `range(…)` over epochs."""
    match schedule.loops[0]:
        case ast.For(_, ast.Call(_, arguments)) if arguments:
            return arguments[-1]
        case _:
            return None


RULE = SourceRule(
    code="H403",
    name="schedule_unit",
    severity=Severity.WRONG,
    fix="step it in the unit that it counts in",
    technique="schedule",
    check=check,
)
