"""All rules: of source files, of models and of runs; and what they find in the profile of a model or a run."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from hasten.doctor.model_rules import ALL as MODEL_RULES
from hasten.doctor.rule import FoundInModel, FoundInRun, ModelRule, RunRule, SourceRule
from hasten.doctor.rules import ALL as SOURCE_RULES
from hasten.doctor.run_rules import ALL as RUN_RULES
from hasten.doctor.run_rules.step_costs import price_of
from hasten.errors import Misconfigured
from hasten.facts.finding import Finding
from hasten.facts.formatting import did_you_mean
from hasten.facts.profiles import ModelProfile, RunProfile

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


def found_in_model(profile: ModelProfile, rules: Collection[ModelRule] = MODEL_RULES) -> list[Finding]:
    return [_of_model(rule, found) for rule in rules for found in rule.check(profile)]


def _of_model(rule: ModelRule, found: FoundInModel) -> Finding:
    layer = found.layer
    if layer is None:
        return rule.finding(found, part="model")
    return rule.finding(found, path=layer.path, line=layer.line, part=f"model.{layer.name}".rstrip("."))


def found_in_run(profile: RunProfile, rules: Collection[RunRule] = RUN_RULES) -> list[Finding]:
    return [_of_run(rule, found, profile) for rule in rules for found in rule.check(profile)]


def _of_run(rule: RunRule, found: FoundInRun, profile: RunProfile) -> Finding:
    line, price = found.line, price_of(profile, found)
    if line is None:
        return rule.finding(found, part="run", price=price)
    return rule.finding(found, path=line.path, line=line.line, price=price)
