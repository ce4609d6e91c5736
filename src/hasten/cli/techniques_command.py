"""What a plan can switch on: `hasten techniques` and `hasten explain`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hasten.cli.application import AsJson, app, ends_with_exit_code
from hasten.errors import Misconfigured
from hasten.facts.formatting import did_you_mean
from hasten.report.display import MOST_COLUMNS
from hasten.report.sentence import Sentence
from hasten.report.terminal.command_output import CommandOutput
from hasten.report.terminal.output import wrapped

if TYPE_CHECKING:
    from hasten.scripts.techniques import ScriptTechnique
    from hasten.techniques.contract import Technique

_CODE = re.compile(r"H\d+")  # of a rule of `hasten doctor`


@app.command()
@ends_with_exit_code
def techniques(as_json: AsJson = False) -> None:
    """List what a plan can switch on, stage by stage.

    \b
    Examples:
      hasten techniques
      hasten techniques --json
    """
    from hasten.facts.techniques.stage import Stage

    known = _known()
    with CommandOutput(as_json=as_json) as output:
        width = max(map(len, known))
        stages = [stage for stage in Stage if any(each.stage is stage for each in known.values())]
        for stage in stages:
            of_stage = [each for each in known.values() if each.stage is stage]
            output.facts(
                stage.name.capitalize(),
                [
                    line
                    for each in of_stage
                    for line in ((each.name.ljust(width), each.headline), ("", f"when {each.treats.value}"))
                ],
            )
        sentence = Sentence(headline=f"{len(known)} techniques, in {len(stages)} stages")
        answer = {"techniques": [_fields(each) for each in known.values()]}
        output.result(sentence, [], "hasten explain precision", answer)


@app.command()
@ends_with_exit_code
def explain(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="A technique, as `hasten techniques` lists them, or a finding's code.")
    ],
    as_json: AsJson = False,
) -> None:
    """Explain a technique or a finding. What it does, when it loses, what it costs, and its source.

    \b
    Examples:
      hasten explain channels_last
      hasten explain H201
      hasten explain H201 --json
    """
    with CommandOutput(as_json=as_json) as output:
        if _CODE.fullmatch(name):
            _explain_rule(name, output)
        else:
            _explain_technique(name, output)


def _explain_technique(name: str, output: CommandOutput) -> None:
    from hasten.scripts.techniques import ScriptTechnique

    known = _known()
    if name not in known:
        raise Misconfigured(f'there is no technique "{name}"', fix=did_you_mean(name, known))
    technique = known[name]
    _show_manual(name, technique.manual, output)
    facts = [
        ("stage", technique.stage.name.lower()),
        ("when", technique.treats.value),
        ("values", technique.values),
        *(("costs" if index == 0 else "", cost) for index, cost in enumerate(technique.costs)),
        ("source", technique.source),
    ]
    answer = _fields(technique) | {"manual": technique.manual}
    following = "hasten tune train.py" if isinstance(technique, ScriptTechnique) else "hasten tune JOB"
    output.end_of_page(Sentence(headline=technique.headline), facts, following, answer)


def _explain_rule(code: str, output: CommandOutput) -> None:
    from hasten.doctor.registry import EVERY

    known = {rule.code: rule for rule in EVERY}
    if code not in known:
        raise Misconfigured(f'there is no rule "{code}"', fix=did_you_mean(code, known))
    rule = known[code]
    _show_manual(f"{code}  {rule.name}", rule.manual, output)
    following = f"hasten explain {rule.technique}" if rule.technique is not None else "hasten techniques"
    names = ("code", "name", "severity", "headline", "fix", "safety", "technique", "manual")
    answer = {each: getattr(rule, each) for each in names}
    output.end_of_page(Sentence(headline=rule.headline), [], following, answer)


def _show_manual(title: str, manual: str, output: CommandOutput) -> None:
    output.facts(title, [])
    for paragraph in manual.split("\n\n"):
        output.text("\n" + (paragraph if "\n " in paragraph else "\n".join(wrapped(paragraph, MOST_COLUMNS))))


def _known() -> dict[str, Technique | ScriptTechnique]:
    """All techniques by name, with those of scripts alone."""
    from hasten.scripts.techniques import OF_SCRIPTS
    from hasten.techniques import ALL

    return {technique.name: technique for technique in (*ALL, *OF_SCRIPTS)}


def _fields(technique: Technique | ScriptTechnique) -> dict[str, Any]:
    names = ("name", "stage", "headline", "treats", "values", "costs", "source")
    return {each: getattr(technique, each) for each in names} | {"stage": technique.stage.name.lower()}
