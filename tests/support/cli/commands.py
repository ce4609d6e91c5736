"""A command as a person gives it, in the process of the test, and what comes of it."""

from __future__ import annotations

import re
import shlex

from typer.testing import CliRunner

from hasten.cli import app
from hasten.cli.application import split_words
from hasten.cli.tuning.script_words import split_at_script


def ran(line: str) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of a command, whose long texts are each on one line again."""
    return invoked(*shlex.split(line))


def invoked(*arguments: str) -> tuple[int, str, str]:
    """The same, for arguments that a shell has split."""
    own, behind = split_at_script(arguments) or split_words(arguments)
    result = CliRunner().invoke(app, own, obj=behind)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout, unwrapped(result.stderr)


def unwrapped(shown: str) -> str:
    """With each text that continues below its label on one line."""
    return re.sub(r"(?<=\S)( \\)?\n {12,}(?=\S)", " ", shown)
