"""All rules: of source files, of models and of runs."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from hasten.doctor.model_rules import ALL as MODEL_RULES
from hasten.doctor.rule import ModelRule, RunRule, SourceRule
from hasten.doctor.rules import ALL as SOURCE_RULES
from hasten.doctor.run_rules import ALL as RUN_RULES
from hasten.errors import Misconfigured
from hasten.facts.formatting import did_you_mean

AnyRule = SourceRule | ModelRule | RunRule
EVERY: tuple[AnyRule, ...] = (*SOURCE_RULES, *MODEL_RULES, *RUN_RULES)


def selected(select: Sequence[str], ignore: Sequence[str]) -> list[AnyRule]:
    """select, ignore: codes or their beginnings; without select, all. Raises Misconfigured for one that no rule has."""
    for code in (*select, *ignore):
        if not any(rule.code.startswith(code) for rule in EVERY):
            known = {rule.code: rule for rule in EVERY}
            raise Misconfigured(f'there is no rule "{code}"', fix=did_you_mean(code, known))
    chosen = [rule for rule in EVERY if not select or rule.code.startswith(tuple(select))]
    return [rule for rule in chosen if not (ignore and rule.code.startswith(tuple(ignore)))]


def of_sources(rules: Collection[AnyRule]) -> list[SourceRule]:
    return [rule for rule in SOURCE_RULES if rule in rules]


def of_models(rules: Collection[AnyRule]) -> list[ModelRule]:
    return [rule for rule in MODEL_RULES if rule in rules]


def of_runs(rules: Collection[AnyRule]) -> list[RunRule]:
    return [rule for rule in RUN_RULES if rule in rules]
