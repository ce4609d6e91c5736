"""The choices of a plan, sorted by stage and applied to a Setup; errors name the place in the plan."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from hasten.errors import PlanError
from hasten.facts.choice import Choice, Preserves
from hasten.facts.formatting import did_you_mean
from hasten.facts.plan import Plan, PlannedChoice
from hasten.facts.techniques.stage import Stage
from hasten.techniques import ALL, No, Setup, Technique, Yes
from hasten.techniques.combinations import conflicts

TECHNIQUES: Mapping[str, Technique] = {technique.name: technique for technique in ALL}


@dataclass(frozen=True, kw_only=True, slots=True)
class Planned:
    """A choice with its technique, and where the plan states it: file and line, or its number among the choices."""

    technique: Technique
    choice: Choice
    place: str


def in_order(plan: Plan) -> list[Planned]:
    """The plan's choices with their techniques, by stage; PlanError for unknown names and illegal combinations."""
    planned = [_planned(item, number) for number, item in enumerate(plan.choices, start=1)]
    if len(planned) > 1 and (found := conflicts([item.choice for item in planned])):
        involved = [choice for conflict in found for choice in conflict.choices]
        places = [item.place for item in planned if any(item.choice is choice for choice in involved)]
        reasons = "; ".join(conflict.reason for conflict in found)
        raise PlanError(reasons, where=", ".join(places), fix="remove all but one of those that exclude each other")
    return sorted(planned, key=lambda item: (item.technique.stage, ALL.index(item.technique)))


def apply_choices(setup: Setup, planned: Sequence[Planned], stages: Sequence[Stage]) -> dict[str, Preserves]:
    """Apply the choices of these stages. What each claims to preserve, by the name of its technique.

    Raises PlanError, with the choice's place, when its value or options make no sense for the job.
    """
    claims: dict[str, Preserves] = {}
    for item in planned:
        if item.technique.stage not in stages:
            continue
        answer = item.technique.applies(setup)
        if isinstance(answer, No) and not (answer.unless_named and item.choice.options):
            notice = f"{item.choice} is in the plan, although hasten tune would not try it here: {answer.reason}"
            setup.notices.append(notice)
        claims[item.technique.name] = _claim(setup, item, answer)
        try:
            item.technique.apply(setup, item.choice)
        except PlanError as error:
            raise PlanError(error.what, where=item.place, fix=error.fix) from error
    return claims


@contextmanager
def with_places(plan: Plan) -> Iterator[None]:
    """A PlanError that names a technique names the place of that choice in the plan instead."""
    try:
        yield
    except PlanError as error:
        for number, item in enumerate(plan.choices, start=1):
            if item.choice.technique == error.where:
                raise PlanError(error.what, where=_place(item, number), fix=error.fix) from error
        raise


def with_claims(plan: Plan, claims: Mapping[str, Preserves]) -> Plan:
    """The plan with what `apply_choices` found that its choices preserve."""
    choices = (
        replace(item, choice=replace(item.choice, preserves=claims[item.choice.technique])) for item in plan.choices
    )
    return replace(plan, choices=tuple(choices))


def _planned(item: PlannedChoice, number: int) -> Planned:
    choice = item.choice
    if choice.technique not in TECHNIQUES:
        fix = f"{did_you_mean(choice.technique, TECHNIQUES)} (hasten techniques lists them)"
        raise PlanError(f"there is no technique named {choice.technique!r}", where=item.place or "plan", fix=fix)
    return Planned(technique=TECHNIQUES[choice.technique], choice=choice, place=_place(item, number))


def _place(item: PlannedChoice, number: int) -> str:
    return f"{item.place}: {item.choice.technique}" if item.place else f"choice {number} ({item.choice})"


def _claim(setup: Setup, item: Planned, answer: Yes | No) -> Preserves:
    """What the choice itself claims; else what its technique claims for it, where it would propose it here."""
    if item.choice.preserves is not None:
        return item.choice.preserves
    wanted = (item.choice.value, dict(item.choice.options))
    proposed = () if isinstance(answer, No) else item.technique.candidates(setup)
    own = [each.preserves for each in proposed if (each.value, dict(each.options)) == wanted]
    return own[0] if own and own[0] is not None else Preserves.TRAINING
