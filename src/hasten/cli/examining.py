"""`hasten doctor`: what slows a job."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from hasten.cli.shared import app, ending_in_one_block, offer
from hasten.errors import Unreadable

FOUND = 1


class Format(StrEnum):
    TEXT = "text"
    JSON = "json"


@app.command()
@ending_in_one_block
def doctor(
    paths: Annotated[list[Path], typer.Argument(metavar="PATH...", help="Source files, or folders of them.")],
    select: Annotated[str, typer.Option(metavar="CODES", help="Only these rules: H201,H3.")] = "",
    ignore: Annotated[str, typer.Option(metavar="CODES", help="All rules but these.")] = "",
    output: Annotated[Format, typer.Option("--format", help="How findings are written.")] = Format.TEXT,
) -> None:
    """Find what slows training in source files. Nothing of them is executed.

    The exit code is 0 where nothing was found, 1 where something was, and 2 where a file cannot be read.

    \b
    Examples:
      hasten doctor train.py
      hasten doctor src --select H2 --format json
    """
    from hasten.doctor.lint import lint, selected
    from hasten.report.findings import as_json, as_text, summary

    linted = lint(paths, selected(select, ignore))
    if output is Format.JSON:
        typer.echo(as_json(linted.findings))
    else:
        if linted.findings:
            typer.echo(as_text(linted.findings, linted.sources))
        typer.echo(f"\n{summary(linted.findings, linted.files)}")
    for error in linted.unreadable:
        typer.echo(str(error), err=True)
    if output is Format.TEXT:
        first = next(iter(linted.findings), None)
        offer(f"hasten explain {first.code}" if first is not None else "hasten techniques")
    if linted.unreadable:
        raise typer.Exit(Unreadable.exit_code)
    if linted.findings:
        raise typer.Exit(FOUND)
