"""`hasten report`."""

from __future__ import annotations

import shlex
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from hasten.cli.application import app, ends_with_exit_code, offer
from hasten.cli.run_history import words_of
from hasten.errors import Misconfigured
from hasten.report.terminal.output import show


@app.command()
@ends_with_exit_code
def report(
    source: Annotated[Path, typer.Argument(metavar="PLAN|RUN", help="A plan's file, or the folder of a run.")],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="The page; default: report.html beside it."),
    ] = None,
) -> None:
    """Write a page about a plan's evidence or about a run. It is one HTML file that loads nothing else.

    \b
    Examples:
      hasten report plan.toml
      hasten report runs/job-1 -o job-1.html
    """
    from hasten.checkpoint.files import write_atomically
    from hasten.facts.trials import trials_beside

    if not source.exists() and not trials_beside(source).exists():
        fix = "name a plan's file, such as plan.toml, or the folder of a run, such as runs/job-1"
        raise Misconfigured("there is no such file or folder", where=str(source), fix=fix)
    page = output or (source if source.is_dir() else source.parent) / "report.html"
    if page.suffix.lower() not in (".html", ".htm"):
        fix = shlex.join(["hasten", "report", str(source), "-o", str(page.with_suffix(".html"))])
        raise Misconfigured(f"a report is an HTML file: {page.name}", where="-o", fix=fix)
    if source.is_dir():
        from hasten.report.page import run_page as writer
        from hasten.report.page.run_log import read_run

        read = partial(read_run, options=words_of(source))
    else:
        from hasten.report.page import plan_page as writer
        from hasten.report.page.plan_evidence import read_evidence

        read = read_evidence
    found: Any = read(source)
    sentence, html, command = str(writer.sentence_of(found)), writer.page_of(found), writer.next_command(found)
    write_atomically(page, html.encode())
    show(sentence, [("report", str(page))])
    offer(command)
