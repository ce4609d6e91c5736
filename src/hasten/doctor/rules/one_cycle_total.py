"""A one-cycle schedule that is made for another number of steps than it takes.

What it finds: `OneCycleLR` whose `total_steps`, or `epochs * steps_per_epoch`, visibly differs from how often the loop
calls its `step()`.

Why it costs: With too many steps in its total the learning rate never falls to its end, where the loss falls most. With
too few, `step()` raises an error in the middle of training.

When to ignore it: Where training is meant to end before the schedule does.

Fix: Give it the epochs of the loop and the steps that each of them takes: one for each call of `step()`.

Safety: Nothing is changed by itself: it changes what is learned.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hasten.doctor.reading.names.amounts import Amount
from hasten.doctor.reading.names.constants import ABSENT, Unknown
from hasten.doctor.reading.source_code import Code
from hasten.doctor.reading.steps.scheduler_steps import Schedule
from hasten.doctor.rule import Found, SourceRule
from hasten.facts.finding import Severity

_POSITIONS = {"total_steps": 2, "epochs": 3, "steps_per_epoch": 4}


def check(code: Code) -> Iterator[Found]:
    told = set[ast.AST]()
    for schedule in code.schedules.stepped("OneCycleLR"):
        if schedule.making in told or code.schedules.steps_elsewhere(schedule):
            continue
        told.add(schedule.making)
        total, taken = _total(code, schedule), code.schedules.amount(schedule)
        if total is None or taken is None or not _differs(total, taken):
            continue
        if any(not isinstance(each, ast.arg) and each[0] == "name" for each in total.without(taken)):
            continue
        yield Found(schedule.making, f"it is made for {_said(total)} steps, and takes {_said(taken)}")


def _total(code: Code, schedule: Schedule) -> Amount | None:
    given = {name: code.values.argument(schedule.making, name, position) for name, position in _POSITIONS.items()}
    if given["total_steps"] is not ABSENT and not _is_none(given["total_steps"]):
        return _amount(code, given["total_steps"])
    epochs, steps = _amount(code, given["epochs"]), _amount(code, given["steps_per_epoch"])
    return epochs.times(steps) if epochs is not None and steps is not None else None


def _amount(code: Code, given: ast.expr | Unknown) -> Amount | None:
    return None if isinstance(given, Unknown) else code.schedules.amounts.of(given)


def _is_none(given: ast.expr | Unknown) -> bool:
    return isinstance(given, ast.Constant) and given.value is None


def _differs(total: Amount, taken: Amount) -> bool:
    """Whether they surely do: the same lengths and another number, or the epochs alone."""
    if total.factors == taken.factors:
        return total.number != taken.number
    if total.without(taken):
        return _loads_other(total, taken)
    missing = taken.without(total)
    return total.number == taken.number > 1 and len(missing) == 1 and missing[0][0] == "len"


def _loads_other(total: Amount, taken: Amount) -> bool:
    """Whether they count the batches of two loaders."""
    own, other = total.without(taken), taken.without(total)
    made = all(len(each) == 1 and each[0][0] == "len" and each[0][1].startswith("made") for each in (own, other))
    return made and total.number == taken.number


def _said(amount: Amount) -> str:
    parts = [] if amount.number == 1 and amount.factors else [f"{float(amount.number):g}"]
    return " * ".join([*parts, *("len(loader)" if kind == "len" else name for kind, name in amount.factors)])


RULE = SourceRule(
    code="H404",
    name="one_cycle_total",
    severity=Severity.WRONG,
    fix="give it as many steps as the loop takes",
    technique="schedule",
    check=check,
)
