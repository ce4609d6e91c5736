"""What a plan can switch on: `hasten techniques` and `hasten explain`."""

from __future__ import annotations

import re
import shutil
from textwrap import fill
from typing import Annotated

import typer

from hasten.cli.application import app, ends_with_exit_code, offer
from hasten.errors import Misconfigured
from hasten.facts.formatting import did_you_mean
from hasten.report.terminal.output import show

_CODE = re.compile(r"H\d+")  # of a rule of `hasten doctor`


@app.command()
@ends_with_exit_code
def techniques() -> None:
    """List what a plan can switch on, stage by stage.

    \b
    Example:
      hasten techniques
    """
    from hasten.techniques import ALL, Stage

    width = max(len(technique.name) for technique in ALL)
    for stage in Stage:
        lines: list[tuple[str, str]] = []
        for technique in ALL:
            if technique.stage is stage:
                lines += [(technique.name.ljust(width), technique.headline), ("", f"when {technique.treats.value}")]
        if lines:
            show(stage.name.capitalize(), lines)
    offer("hasten explain precision")


@app.command()
@ends_with_exit_code
def explain(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="A technique, as `hasten techniques` lists them, or a finding's code.")
    ],
) -> None:
    """Explain a technique or a finding. What it does, when it loses, what it costs, and its source.

    \b
    Examples:
      hasten explain channels_last
      hasten explain H201
    """
    if _CODE.fullmatch(name):
        _explain_rule(name)
        return
    from hasten.techniques import ALL

    known = {technique.name: technique for technique in ALL}
    if name not in known:
        raise Misconfigured(f'there is no technique "{name}"', fix=did_you_mean(name, known))
    technique = known[name]
    _print_manual(name, technique.manual)
    show(
        "",
        [
            ("stage", technique.stage.name.lower()),
            ("when", technique.treats.value),
            ("values", technique.values),
            *(("costs" if index == 0 else "", cost) for index, cost in enumerate(technique.costs)),
            ("source", technique.source),
            ("in a plan", "[[choice]]"),
            ("", f'technique = "{name}"'),
            ("", "value = …"),
        ],
    )
    offer("hasten train digits.py:job --plan plan.toml")


def _explain_rule(code: str) -> None:
    from hasten.doctor.registry import EVERY

    known = {rule.code: rule for rule in EVERY}
    if code not in known:
        raise Misconfigured(f'there is no rule "{code}"', fix=did_you_mean(code, known))
    rule = known[code]
    _print_manual(f"{code}  {rule.name}", rule.manual)
    offer(f"hasten explain {rule.technique}" if rule.technique is not None else "hasten techniques")


def _print_manual(title: str, manual: str) -> None:
    typer.secho(f"\n{title}", bold=True)
    width = min(shutil.get_terminal_size().columns, 100)
    for paragraph in manual.split("\n\n"):
        typer.echo("\n" + (paragraph if "\n " in paragraph else fill(paragraph, width)))
