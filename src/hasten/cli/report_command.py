"""`hasten report`."""

from __future__ import annotations

import shlex
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hasten.cli.application import AsJson, Quiet, app, ends_with_exit_code
from hasten.cli.run_history import words_of
from hasten.cli.tuning.script_words import MODULE
from hasten.errors import Misconfigured
from hasten.regular_files import read_regular
from hasten.report.terminal.command_output import CommandOutput

if TYPE_CHECKING:
    from hasten.report.page.plan_evidence import Evidence


@app.command()
@ends_with_exit_code
def report(
    source: Annotated[Path, typer.Argument(metavar="PLAN|RUN", help="A plan's file, or the folder of a run.")],
    page: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="The page; default: report.html beside it."),
    ] = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Write a page about a plan's evidence or about a run. It is one HTML file that loads nothing else.

    \b
    Examples:
      hasten report plan.toml
      hasten report runs/job-1 -o job-1.html
      hasten report plan.toml --json
    """
    from hasten.facts.trials import trials_beside

    if not source.exists() and not trials_beside(source).exists():
        fix = "name a plan's file, such as plan.toml, or the folder of a run, such as runs/job-1"
        raise Misconfigured("there is no such file or folder", where=str(source), fix=fix)
    page = page or (source if source.is_dir() else source.parent) / "report.html"
    if page.suffix.lower() not in (".html", ".htm"):
        fix = shlex.join(["hasten", "report", str(source), "-o", str(page.with_suffix(".html"))])
        raise Misconfigured(f"a report is an HTML file: {page.name}", where="-o", fix=fix)
    with CommandOutput(quiet=quiet, as_json=as_json) as output:
        output.header(f"Writing a page about {source}")
        _write_page(source, page, output)


def _write_page(source: Path, page: Path, output: CommandOutput) -> None:
    from hasten.checkpoint.files import write_atomically

    waiting = output.progress("writing")
    if source.is_dir():
        from hasten.report.page import run_page as writer
        from hasten.report.page.run_log import read_run

        def reading(done: int, lines: int) -> None:
            waiting(done, 4 * lines)  # drawing takes longer

        read = partial(read_run, options=words_of(source), progress=reading)
    else:
        from hasten.report.page import plan_page as writer

        read = _evidence
    with closing(waiting):
        found: Any = read(source)
        write_atomically(page, writer.page_of(found).encode())
        waiting(1, 1)
    following, answer = writer.next_command(found), {"source": source, "report": page}
    output.result(writer.sentence_of(found), [("report", str(page))], following, answer)


def _evidence(plan: Path) -> Evidence:
    """With the command that trains a script plainly, where it needs no plan: its patch is applied, or it has none."""
    from hasten.cli.tuning.script_subject import command_of
    from hasten.report.page.plan_evidence import read_evidence
    from hasten.scripts.edits.patch_file import read_patch
    from hasten.scripts.running.program import program_of

    found, patch = read_evidence(plan), read_patch(plan.with_suffix(".patch"))
    is_applied = patch is not None and patch.is_made_from(read_regular(plan)) and patch.is_applied()
    needs_plan = bool(found.choices) and not is_applied
    if found.plan.script is None or found.surveyed is None or needs_plan:
        return found
    program = program_of(shlex.split(found.surveyed.job))
    name = f"{MODULE} {program.name}" if program.is_module else program.name
    return replace(found, trains_plainly=command_of(name, program.options))
