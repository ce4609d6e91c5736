"""A command as a person gives it, and what comes of it."""

from __future__ import annotations

import shlex

from typer.testing import CliRunner

from hasten.cli import app


def ran(line: str) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of a command."""
    result = CliRunner().invoke(app, shlex.split(line))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout, result.stderr
