"""The command line inside the test's own process, over jobs that are written for the test."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hasten.cli import app

CONTROL_CODE = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]")


def jobs_in(folder: Path, text: str, patch: pytest.MonkeyPatch) -> None:
    """Write the module faulty_jobs, and be in its folder while the test runs."""
    (folder / "faulty_jobs.py").write_text(text)
    patch.chdir(folder)
    patch.setattr(sys, "path", list(sys.path))
    patch.delitem(sys.modules, "faulty_jobs", raising=False)


def ran(*arguments: str) -> tuple[int, str]:
    """Exit code and standard error of a command."""
    result = CliRunner().invoke(app, arguments)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stderr
