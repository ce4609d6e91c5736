"""Make the doctor's fix of one rule, at every place where `hasten doctor` finds it.

There is one technique for each rule that says what its fix preserves: `fix_` and the rule's name. A rule about
correctness says nothing, and neither does one whose fix is what another technique of scripts does, such as
`pin_memory`. The page of each is made of its rule's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from hasten.doctor.edits import Unspliceable, splices_of
from hasten.doctor.lint.linter import found_in
from hasten.doctor.lint.source_files import Source
from hasten.doctor.rule import Found, Severity, SourceRule
from hasten.doctor.rules import ALL
from hasten.errors import PlanError, Unreadable
from hasten.facts.scripts.script_places import ScriptPlaces, SourceCall
from hasten.facts.techniques.stage import Stage
from hasten.facts.techniques.symptom import Symptom
from hasten.scripts.edits.edit import Edit, Fix
from hasten.scripts.edits.source_places import place_of
from hasten.scripts.techniques.script_technique import ScriptTechnique, Sources

RULES: Mapping[str, SourceRule] = {f"fix_{rule.name}": rule for rule in ALL if rule.preserves is not None}
_TREATS = {
    "anomaly_detection": Symptom.MANY_SMALL_OPERATIONS,
    "benchmark": Symptom.SLOW_CONVOLUTION,
    "gradients_zeroed": Symptom.SLOW_OPTIMIZER,
    "list_of_arrays": Symptom.SLOW_LOADING,
    "tensor_copied": Symptom.SLOW_LOADING,
    "tf32_off": Symptom.SLOW_MATRIX_PRODUCT,
}


def findings(text: str, file: str) -> dict[str, tuple[SourceCall, ...]]:
    """Technique -> where its rule finds something in a source that it can fix."""
    found = dict[str, tuple[SourceCall, ...]]()
    for rule, each in _fixable(text, file, [*RULES.values()]):
        name = f"fix_{rule.name}"
        found[name] = (*found.get(name, ()), place_of(each.node, file))
    return found


def _fixable(text: str, file: str, rules: list[SourceRule]) -> Iterator[tuple[SourceRule, Found]]:
    """Without what costs its time once before training, and what the script's author silenced."""
    try:
        found = found_in(Source(file, text), rules)
    except Unreadable:
        return
    for rule, each in found:
        if each.edits and each.severity is not Severity.ONCE and _can_be_written(each, text):
            yield rule, each


def _can_be_written(found: Found, text: str) -> bool:
    try:
        return all(splices_of(each, text) for each in found.edits)
    except Unspliceable:
        return False


def _edits(rule: SourceRule) -> Callable[[ScriptPlaces, Sources], list[Edit]]:
    def edits(places: ScriptPlaces, sources: Sources) -> list[Edit]:
        asked = places.findings.get(f"fix_{rule.name}", ())
        if not asked:
            raise PlanError(f"the doctor finds no {rule.code} in the script that it can fix")
        if rule.gpu_only and places.device == "cpu":
            raise PlanError(f"{rule.code} costs nothing on a CPU")
        found = dict[SourceCall, Fix]()
        for file in dict.fromkeys(each.file for each in asked):
            for _, each in _fixable(sources(file), file, [rule]):
                place = place_of(each.node, file)
                found[place] = Fix(call=place, edits=each.edits)
        if missing := [each for each in asked if each not in found]:
            raise PlanError(f"the doctor finds no {rule.code} at line {missing[0].line}")
        return [found[each] for each in asked]

    return edits


def _page(rule: SourceRule) -> str:
    """Of a technique, by the page of its rule."""
    said = dict(part.split(": ", 1) for part in rule.manual.split("\n\n") if ": " in part)
    example = next(part for part in rule.manual.split("\n\n") if part.startswith("    "))
    assert rule.preserves is not None
    parts = (
        f"Fix what the doctor finds as {rule.code}: {rule.headline}.",
        f"What it does: The script gets the doctor's fix at every place where it finds {rule.code}. {said['Fix']}",
        f"Why it is faster: {said['Why it matters']}",
        f"When to ignore: {said['When to ignore']}",
        f'What it changes: "{rule.preserves.words}".',
        f"Limits: {said['Automatic fix'].partition('. ')[2]}",
        f"Example:\n\n{example}",
    )
    return "\n\n".join(parts)


def _technique(name: str, rule: SourceRule) -> ScriptTechnique:
    assert rule.preserves is not None
    return ScriptTechnique(
        name=name,
        stage=Stage.PROCESS,
        treats=_TREATS.get(rule.name, Symptom.DEVICE_IDLE),
        preserves=rule.preserves,
        costs=(),
        source=f"the page of the rule: hasten explain {rule.code}",
        edits=_edits(rule),
        page=_page(rule),
    )


TECHNIQUES = tuple(_technique(name, rule) for name, rule in RULES.items())
