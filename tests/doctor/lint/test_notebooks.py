"""Notebooks: their code cells are read as one text, and a finding names its cell and the line in it."""

from __future__ import annotations

import json

import pytest

from hasten.doctor.lint.linter import lint_source
from hasten.doctor.lint.source_files import read
from hasten.errors import Unreadable

WRONG = "optimizer.zero_grad(set_to_none=False)"


def notebook(*cells: tuple[str, str], language: str = "python") -> str:
    made = [{"cell_type": kind, "metadata": {}, "source": text.splitlines(True)} for kind, text in cells]
    return json.dumps({"cells": made, "metadata": {"language_info": {"name": language}}, "nbformat": 4})


@pytest.fixture
def findings(tmp_path):
    def look(text: str):
        path = tmp_path / "a.ipynb"
        path.write_text(text)
        return lint_source(read(path))

    return look


def test_a_finding_names_its_cell_and_the_line_in_it(findings):
    text = notebook(("markdown", "# Title\n\ntext"), ("code", "import torch\nx = 1"), ("code", f"\n{WRONG}\n"))
    (found,) = findings(text)
    assert (found.cell, found.line, found.end_line, found.source) == (3, 2, 2, WRONG)
    assert found.place.endswith("a.ipynb:cell 3:2:1")


@pytest.mark.parametrize(
    "magic",
    [
        "%matplotlib inline",
        "!pip install torch \\\n    torchvision",
        "%%time",
        "%%capture output",
        "model?",
        "  # note\nfiles = !ls",
        "if True:\n    !ls\n    %load_ext autoreload",
        'print("%d"\n      % x)',
    ],
    ids=["line magic", "shell", "time", "capture", "help", "assigned", "indented", "an operator"],
)
def test_what_is_no_python_in_a_cell_hides_nothing_behind_it(findings, magic):
    (found,) = findings(notebook(("code", f"{magic}\n{WRONG}")))
    assert (found.line, found.safety) == (magic.count("\n") + 2, None)


def test_a_cell_of_another_language_is_passed_over(findings):
    assert [each.cell for each in findings(notebook(("code", "\n%%bash\nfor x in"), ("code", WRONG)))] == [2]
    assert findings(notebook(("code", WRONG), language="julia")) == []


def test_a_syntax_error_names_its_cell(findings):
    with pytest.raises(Unreadable, match=r"a\.ipynb:cell 2:1: is not valid Python"):
        findings(notebook(("code", "import torch"), ("code", "def f(:")))


@pytest.mark.parametrize("text", ["", "[]", "{", '{"cells": 3}', "3", "[" * 100_000])
def test_a_file_that_is_no_notebook_is_refused(findings, text):
    with pytest.raises(Unreadable, match="is not a notebook"):
        findings(text)
