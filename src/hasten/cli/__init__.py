"""The command line. Every command ends with the command to run next, and every failure in one block and its exit code.

A command is a function in a module of this package, which is imported here to enrol it, in the order that help shows.
"""

# ruff: noqa: F401

from __future__ import annotations

import os
import sys
from contextlib import suppress
from io import TextIOWrapper
from typing import Annotated

import typer

from hasten.cli.application import app as app
from hasten.cli.application import own_process, split_words
from hasten.cli.tuning.script_words import split_at_script
from hasten.stop_signals import end_at_once

from hasten.cli.doctor import doctor_command  # isort: skip
from hasten.cli.tuning import tune_command  # isort: skip
from hasten.cli import run_command  # isort: skip
from hasten.cli.prove import loss_command, resume_command  # isort: skip
from hasten.cli import train_command, evaluate_command, checkpoints_command, techniques_command, profile_command  # isort: skip
from hasten.cli import plan_mesh_command, pack_command, report_command  # isort: skip


def main() -> None:
    """The `hasten` command, once all of this is loaded; __main__.py is where it begins."""
    end_at_once()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that lacks a character gets the rest of the line
    own_process()
    own, behind = split_at_script(sys.argv[1:]) or split_words(sys.argv[1:])
    try:
        app(args=own, obj=behind)
    finally:
        _drop_what_cannot_be_written()


def _drop_what_cannot_be_written() -> None:
    """Else Python would fail to write it when the process ends, and replace the exit code of the command by its own."""
    stream = sys.stdout
    if stream is None:
        return
    try:
        stream.flush()
    except (OSError, ValueError):
        with suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


@app.callback(invoke_without_command=True)
def root(
    version: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False,
) -> None:
    if version:
        from importlib.metadata import version as version_of

        typer.echo(f"hasten {version_of('hasten')}")
        raise typer.Exit
