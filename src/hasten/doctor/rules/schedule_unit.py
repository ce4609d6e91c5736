"""Schedule in batches stepped per epoch, or the other way round.

What it finds: `OneCycleLR`, which counts batches, stepped once per epoch. StepLR, MultiStepLR or
ExponentialLR stepped after each batch, although its numbers are epochs. `ReduceLROnPlateau.step()` without
its metric.

Why it matters: A schedule that is stepped too rarely stays near its first learning rate. One that counts
epochs and is stepped per batch ends within the first epoch. Without its metric, ReduceLROnPlateau raises an
error.

Fix: Move `step()` into the loop over batches or out of it, and pass ReduceLROnPlateau its metric.

    for epoch in range(epochs):
        for x, y in loader:
            train_step(x, y)
            one_cycle.step()
        plateau.step(validate(model))

When to ignore: An epoch is a single batch.

Automatic fix: None. It changes training.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hasten.doctor.reading.names.scopes import Loop, iterated
from hasten.doctor.reading.steps.optimizer_events import Action
from hasten.doctor.reading.steps.scheduler_steps import Schedule
from hasten.doctor.rule import Code, Found, Severity, SourceRule

_OF_EPOCHS = ("StepLR", "MultiStepLR", "ExponentialLR")
_LEAST_DECAY = 0.95  # of a rate multiplied by it for each of a thousand batches, 5e-23 is left


def check(code: Code) -> Iterator[Found]:
    for call in code.methods("step"):
        assert isinstance(call.func, ast.Attribute)
        made = code.updates.optimizers.made(call.func.value)
        if made == "torch.optim.lr_scheduler.ReduceLROnPlateau" and not call.args and not call.keywords:
            message = f"{ast.unparse(call)} lacks the metric that ReduceLROnPlateau requires"
            yield Found(call, message, fix="pass the validation loss or metric")
    for schedule in code.schedules.stepped("OneCycleLR"):
        if _steps_per_epoch(code, schedule) and _counts_batches(code, schedule):
            message = f"{schedule.name} counts batches, but {schedule.name}.step() runs once per epoch"
            yield Found(schedule.call, message, fix="call it after each batch")
    for kind in _OF_EPOCHS:
        for schedule in code.schedules.stepped(kind):
            if _steps_per_batch(code, schedule) and _counts_epochs(code, schedule):
                message = f"{schedule.name} counts epochs, but {schedule.name}.step() runs after each batch"
                yield Found(schedule.call, message, fix="call it once per epoch")


def _is_conditional(schedule: Schedule) -> bool:
    return any(isinstance(each, ast.If) for each, _ in schedule.event.around)


def _steps_per_epoch(code: Code, schedule: Schedule) -> bool:
    """Whether its loop is around one that updates, and its step() outside of that."""
    if len(schedule.loops) != 1 or _is_conditional(schedule):
        return False
    turn = next(turn for turn in code.updates.turns if turn.node is schedule.loops[0])
    updates = turn.of(Action.UPDATE)
    return bool(updates) and all(any(isinstance(each, Loop) for each, _ in update.around) for update in updates)


def _counts_batches(code: Code, schedule: Schedule) -> bool:
    total = code.values.argument(schedule.making, "total_steps", 2)
    steps = code.values.argument(schedule.making, "steps_per_epoch", 4)
    amounts = [code.schedules.amounts.of(each) for each in (total, steps) if isinstance(each, ast.expr)]
    return any(each is not None and bool(each.lengths) for each in amounts)


def _steps_per_batch(code: Code, schedule: Schedule) -> bool:
    """Whether each batch steps it, in a loop over a loader inside of `for epoch in range(…)`."""
    if len(schedule.loops) != 2 or _is_conditional(schedule):
        return False
    batches = code.schedules.amounts.turns(schedule.loops[1])
    turns = [turn for turn in code.updates.turns if turn.node is schedule.loops[1]]
    updates = any(turn.of(Action.UPDATE) for turn in turns)
    return updates and batches is not None and bool(batches.lengths) and _epochs(schedule) is not None


def _counts_epochs(code: Code, schedule: Schedule) -> bool:
    """Whether its numbers fall within the epochs of the loop, and so within the first batches."""
    epochs, making = code.values.constant(_epochs(schedule)), schedule.making
    if schedule.kind == "ExponentialLR":
        gamma = code.values.constant_argument(making, "gamma", 1)
        return isinstance(gamma, float) and gamma <= _LEAST_DECAY
    name = "step_size" if schedule.kind == "StepLR" else "milestones"
    given = code.values.argument(making, name, 1)
    followed = code.names.followed(given) if isinstance(given, ast.expr) else None
    parts = followed.elts if isinstance(followed, ast.List | ast.Tuple) else [followed]
    numbers = [code.values.constant(each) for each in parts]
    return isinstance(epochs, int) and epochs > 1 and all(isinstance(each, int) and each <= epochs for each in numbers)


def _epochs(schedule: Schedule) -> ast.expr | None:
    """The number at the end of `range(…)` over epochs."""
    loop = schedule.loops[0]
    match iterated(loop.iter) if isinstance(loop, ast.For) else None:
        case ast.Call(ast.Name("range"), [*_, last]):
            return last
        case _:
            return None


RULE = SourceRule(
    code="H403",
    severity=Severity.WRONG,
    fix="call step() in the unit that the schedule counts",
    technique="schedule",
    check=check,
)
