"""Check the value of a choice in a plan, and refuse one that makes no sense with what to write instead."""

from __future__ import annotations

from dataclasses import replace

from hasten.errors import PlanError
from hasten.facts.choice import Choice
from hasten.facts.job import is_number as is_number
from hasten.facts.job import is_whole as is_whole


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
    """A text keeps its quotes, as "true" and "64" look like values that are allowed."""
    shown = replace(choice, value=f'"{choice.value}"') if isinstance(choice.value, str) else choice
    return PlanError(f"the plan asks for {shown}", where=choice.technique, fix=fix)
