"""The command line. Every command ends with the command to run next, and every failure in one block and its exit code.

A command is a function in a module of this package, which is imported here to enrol it, in the order that help shows.
"""

from __future__ import annotations

import sys
from io import TextIOWrapper
from typing import Annotated

import typer

from hasten.cli.shared import app, be_alone
from hasten.stop_signals import end_at_once

from hasten.cli import examining, tuning, proving, training, keeping, techniques, looking, meshes, packing, reporting  # isort: skip

__all__ = [
    "app",
    "examining",
    "keeping",
    "looking",
    "main",
    "meshes",
    "packing",
    "proving",
    "reporting",
    "techniques",
    "training",
    "tuning",
]


def main() -> None:
    """The `hasten` command, once all of this is loaded; __main__.py is where it begins."""
    end_at_once()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that lacks a character gets the rest of the line
    be_alone()
    app()


@app.callback(invoke_without_command=True)
def root(
    version: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False,
) -> None:
    if version:
        from importlib.metadata import version as version_of

        typer.echo(f"hasten {version_of('hasten')}")
        raise typer.Exit
