"""Check the value of a choice in a plan, and refuse one that makes no sense with what to write instead."""

from __future__ import annotations

from typing import Any, TypeGuard

from hasten.errors import PlanError
from hasten.facts.choice import Choice


def check_true(choice: Choice) -> None:
    """Raise PlanError unless the plan writes true, without options."""
    if choice.value is not True or choice.options:
        raise refused(choice, "write true without options, or remove the line")


def whole_number(choice: Choice, meaning: str, *, most: int | None = None) -> int:
    """The value, which must be a whole number from 1 to `most`, without options. meaning: what the number counts.

    Raises PlanError for any other value.
    """
    value = choice.value
    if not is_whole(value) or (most is not None and value > most) or choice.options:
        bounds = "1 or more" if most is None else f"1 to {most}"
        raise refused(choice, f"write {meaning}: a whole number, {bounds}, without options")
    return value


def refused(choice: Choice, fix: str) -> PlanError:
    return PlanError(f"the plan asks for {choice}", where=choice.technique, fix=fix)


def is_whole(value: Any, least: int = 1) -> TypeGuard[int]:
    """Whether it is an integer of at least `least`; true and false are none."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def is_number(value: Any) -> TypeGuard[int | float]:
    """Whether it is an integer or a float; true and false are neither."""
    return isinstance(value, int | float) and not isinstance(value, bool)
