"""OneCycleLR with another number of steps than the loop.

What it finds: `OneCycleLR` whose total number of steps visibly differs from how often the loop calls its
`step()`.

Why it matters: If the total is too large, the learning rate never reaches its low end, where the loss falls
most. If it is too small, `step()` raises an error in the middle of training.

Fix: Use the epochs of the loop, and the `step()` calls in each.

    scheduler = OneCycleLR(optimizer, 0.1, epochs=9, steps_per_epoch=len(loader))

When to ignore: Training is meant to end before the schedule does.

Automatic fix: None. It changes training.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hasten.doctor.reading.steps.scheduler_steps import Amount, Schedule
from hasten.doctor.rule import Code, Found, Severity, SourceRule

_POSITIONS = {"total_steps": 2, "epochs": 3, "steps_per_epoch": 4}


def check(code: Code) -> Iterator[Found]:
    seen = set[ast.AST]()
    for schedule in code.schedules.stepped("OneCycleLR"):
        if schedule.making in seen or code.schedules.steps_elsewhere(schedule):
            continue
        seen.add(schedule.making)
        total, taken = _total(code, schedule), code.schedules.amount(schedule)
        if total is not None and taken is not None and _differs(total, taken):
            yield Found(schedule.making, f"OneCycleLR is set to {total} steps, but the loop calls step() {taken} times")


def _total(code: Code, schedule: Schedule) -> Amount | None:
    given = {name: code.values.argument(schedule.making, name, position) for name, position in _POSITIONS.items()}
    amounts = {name: code.schedules.amounts.of(each) for name, each in given.items() if isinstance(each, ast.AST)}
    total, epochs, steps = (amounts.get(name) for name in _POSITIONS)
    return total if total is not None or epochs is None else epochs.times(steps)


def _differs(total: Amount, taken: Amount) -> bool:
    """Whether they surely do: the same lengths and another number, one without the epochs, or two other loaders."""
    own, other = total.without(taken), taken.without(total)
    if not own and not other:
        return total.number != taken.number
    if own:
        two_loaders = len(own) == len(other) == 1 and all(each.startswith("made") for each in (*own, *other))
        return two_loaders and total.number == taken.number
    return total.number == taken.number > 1 and len(other) == 1


RULE = SourceRule(
    code="H404",
    severity=Severity.WRONG,
    fix="set total_steps to the number of step() calls in the loop",
    technique="schedule",
    check=check,
)
