"""The command line inside the test's own process, over jobs that are written for the test."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from support.cli.commands import invoked

CONTROL_CODE = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]")


def jobs_in(folder: Path, text: str, patch: pytest.MonkeyPatch) -> None:
    """Write the module faulty_jobs, and be in its folder while the test runs."""
    (folder / "faulty_jobs.py").write_text(text)
    patch.chdir(folder)
    patch.setattr(sys, "path", list(sys.path))
    patch.delitem(sys.modules, "faulty_jobs", raising=False)


def ran(*arguments: str) -> tuple[int, str]:
    """Exit code and standard error of a command."""
    code, _, error = invoked(*arguments)
    return code, error
