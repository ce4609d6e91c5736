"""The page that shows how an operator is written is followed to the letter."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "operators.md"
FILE = re.compile(r"^```(?:cpp|python)\n(?://|#) (\w+\.\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)

pytestmark = pytest.mark.skipif(shutil.which("c++") is None, reason="needs a C++ compiler")


@pytest.fixture
def folder(tmp_path):
    """With every file that the page shows."""
    files = dict(FILE.findall(PAGE.read_text(encoding="utf-8")))
    assert [*files] == ["squared_relu.cpp", "squared_relu.py", "test_squared_relu.py", "measure_squared_relu.py"]
    for name, text in files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    return tmp_path


def ran(folder, *command):
    return subprocess.run(
        [sys.executable, *command], cwd=folder, env=dict(os.environ), capture_output=True, text=True, check=False
    )


def test_its_tests_pass(folder):
    ended = ran(folder, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_squared_relu.py")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "12 passed" in ended.stdout


@pytest.mark.proof
def test_its_measurement_tells_a_ratio_with_its_spread(folder):
    measure = folder / "measure_squared_relu.py"
    measure.write_text(measure.read_text().replace("1 << 22", "1 << 10"))
    ended = ran(folder, "measure_squared_relu.py")
    assert ended.returncode == 0, ended.stderr
    assert re.fullmatch(r"[\d.]+× \([\d.]+–[\d.]+, 12 pairs\)\n", ended.stdout), ended.stdout
