"""`hasten run`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from hasten.cli.application import app, ends_with_exit_code
from hasten.cli.tuning.script_words import program_words

SCRIPT = "The training script or notebook, a console script's name, or -m and a module."
ScriptName = Annotated[str, typer.Argument(metavar="FILE", help=SCRIPT)]


@app.command()
@ends_with_exit_code
def run(
    context: typer.Context,
    script: ScriptName,
    plan: Annotated[
        Path | None,
        typer.Option("--plan", metavar="FILE", help="Run it with this plan; default: unchanged."),
    ] = None,
) -> None:
    """Run a training script with a plan. The file is not changed; what stands behind its name is the script's own.

    \b
    Examples:
      hasten run train.py --plan plan.toml --epochs 3
      hasten run --plan plan.toml -m package.train --epochs 3
    """
    from hasten.scripts.running.program import program_of

    program = program_of(program_words(script, context.obj or ()))
    program.path  # noqa: B018  raises where there is none
    sys.stdout.flush()
    from hasten.scripts.running.notebook import is_notebook

    if plan is None and not program.entry and not is_notebook(program.name):
        os.execv(sys.executable, [sys.executable, *program.words])
    planned = "" if plan is None else str(plan)
    os.execv(sys.executable, [sys.executable, "-m", "hasten.scripts.running.start", planned, *program.words])
