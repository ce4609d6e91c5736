"""The corpus of training scripts and its table say the same."""

from __future__ import annotations

import ast
import json

from support.scripts.programs import CORPUS, PROGRAMS

HELPERS = {
    *(f"package/tagger/{name}.py" for name in ("__init__", "grammar", "network")),
    *(f"project/{name}.py" for name in ("config", "data", "model")),
}


def test_every_file_is_in_the_table_once():
    files = {path.relative_to(CORPUS).as_posix() for path in CORPUS.rglob("*.*") if path.suffix in {".py", ".ipynb"}}
    assert files == {*PROGRAMS} | HELPERS


def test_none_imports_hasten():
    for path in CORPUS.rglob("*.py"):
        imported = {
            name.name if isinstance(node, ast.Import) else node.module or ""
            for node in ast.walk(ast.parse(path.read_bytes()))
            if isinstance(node, ast.Import | ast.ImportFrom)
            for name in node.names
        }
        assert not {name for name in imported if name.partition(".")[0] == "hasten"}, path


def test_the_notebook_is_one():
    cells = json.loads((CORPUS / "odd/weather.ipynb").read_text(encoding="utf-8"))["cells"]
    assert [cell["cell_type"] for cell in cells].count("code") >= 5


def test_folders_are_small():
    """The shape test skips a corpus."""
    assert all(len([*folder.glob("*.*")]) <= 15 for folder in CORPUS.rglob("*") if folder.is_dir())
    assert all(path.read_bytes().count(b"\n") <= 120 for path in CORPUS.rglob("*.py"))
