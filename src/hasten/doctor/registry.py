"""All rules: those of sources, of models and of running jobs."""

from __future__ import annotations

from collections.abc import Sequence

from hasten.doctor.contract import Rule
from hasten.doctor.model_rules import ALL as OF_MODELS
from hasten.doctor.model_rules import ModelRule
from hasten.doctor.rules import ALL as OF_SOURCES
from hasten.doctor.run_rules import ALL as OF_RUNS
from hasten.doctor.run_rules import RunRule
from hasten.errors import Misconfigured
from hasten.facts.formatting import did_you_mean

AnyRule = Rule | ModelRule | RunRule
EVERY: tuple[AnyRule, ...] = (*OF_SOURCES, *OF_MODELS, *OF_RUNS)


def selected(select: Sequence[str], ignore: Sequence[str]) -> list[AnyRule]:
    """select, ignore: codes or their beginnings; those in preview are chosen where they are named. Raises Misconfigured
    for one that no rule has."""
    for code in (*select, *ignore):
        if not any(rule.code.startswith(code) for rule in EVERY):
            known = {rule.code: rule for rule in EVERY}
            raise Misconfigured(f'there is no rule "{code}"', fix=did_you_mean(code, known))
    if select:
        chosen = [rule for rule in EVERY if rule.code.startswith(tuple(select))]
    else:
        chosen = [rule for rule in EVERY if not (isinstance(rule, Rule) and rule.preview)]
    return [rule for rule in chosen if not (ignore and rule.code.startswith(tuple(ignore)))]
