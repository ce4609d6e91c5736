"""By the recipe: whatever a choice claims, what the steps of a script are made of must stay: rates, modes, dropout, the
order of samples. What the baseline changes itself does not count."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import zip_longest

from hasten.facts.plan import Plan
from hasten.facts.trials import Doing, Proven
from hasten.tuning.proof.answers import Answer, Choices, Report, listed, sort_out
from hasten.tuning.search.candidates import changes_training, plan_of, without
from hasten.tuning.trials.trial_outcome import ArmFailed

Recipe = Mapping[str, Sequence[str]]
"""What the steps of a script are made of: name -> its value in each step."""
UNKNOWN = "unknown"  # a value, which differs from none
_COMPARED = "data order, optimizer options and dropout"


def by_recipe(recipe_of: Callable[[Plan], Recipe], choices: Choices, report: Report) -> list[Proven]:
    """One record for each choice that changes the recipe of the training. What the baseline changes itself does not
    count."""
    again = list[Recipe]()

    def failed(failure: ArmFailed, *, is_plans: bool) -> Answer:
        reason = f"its steps could not be compared: {failure.reason}"
        return Answer(passes=False, reason=reason, unanswered=True, is_plans=is_plans)

    def compared(choices: Choices) -> Answer:
        report(Doing(what=f"comparing {_COMPARED} with {listed(choices)}"))
        try:
            planned = recipe_of(plan_of(choices))
            if different_in(plain, planned) and not again:
                again.append(recipe_of(Plan()))
        except ArmFailed as failure:
            return failed(failure, is_plans=True)
        own = set(different_in(plain, again[0])) if again else set[str]()
        found = next((why for name, why in different_in(plain, planned).items() if name not in own), None)
        return Answer(passes=found is None, reason=found or "each step does the same")

    claimed = without(choices, *filter(changes_training, choices))
    if not claimed:
        return []
    try:
        plain = recipe_of(Plan())
    except ArmFailed as failure:
        return [failed(failure, is_plans=False).of(choice) for choice in claimed]
    return [each for each in sort_out(compared, claimed, claimed)[0] if not each.passes] if plain else []


def different_in(plain: Recipe, planned: Recipe) -> dict[str, str]:
    """Of each name whose values differ, a sentence on the first step in which they do."""
    found = dict[str, str]()
    for name in sorted(plain.keys() | planned.keys()):
        steps = zip_longest(plain.get(name, ()), planned.get(name, ()), fillvalue="")
        for number, (before, after) in enumerate(steps, start=1):
            if before != after and UNKNOWN not in (before, after):
                where = f"{name}, in step {number}," if len(plain.get(name, ())) > 1 else name
                what = f"{where} is {after or 'nothing'} with it, not {before or 'nothing'}"
                found.setdefault(name, f"changes what a step does: {what}")
    return found
