"""A notebook as a script, and an edited script back into its notebook.

The script holds the code cells in order, each behind a line that names it. A line of IPython's own, such as
`%matplotlib inline` or `!pip install`, becomes a comment.
"""

from __future__ import annotations

import ast
import json
import os
import re
from pathlib import Path
from typing import Any

from hasten.errors import Misconfigured
from hasten.regular_files import read_regular

SUFFIX = ".ipynb"
_TITLE = "# %% cell {number}\n\n"  # the empty line keeps it where lines are added before the cell's first statement
_LINES_OF_TITLE = 2
_TITLES = re.compile(r"^# %% cell \d+\n\n", re.MULTILINE)
_MARK = "IPython: "
_MAGIC = re.compile(r"^([ \t]*)([%!].*)$", re.MULTILINE)
_COMMENTED = re.compile(rf"^([ \t]*)(?:pass  )?# {_MARK}([%!].*)$", re.MULTILINE)
_FIRST_INDENTATION = re.compile(r"\{\r?\n([ \t]+)")
_OF_WHOLE_CELL = re.compile(r"\s*%%(\w+)")
_HARMLESS = frozenset({"capture", "time", "timeit"})  # the rest of such a cell is Python


def is_notebook(path: str | Path) -> bool:
    return Path(path).suffix == SUFFIX


def script_of(text: str, where: str) -> str:
    """text: the notebook's file; where: its name. Raises Misconfigured where a cell is no Python."""
    return "".join(_script_of_cells(_read(text, where), where).values())


def place_in(path: str, line: int) -> str:
    """Of a line of a file, or of a notebook's script: "train.py:7", "train.ipynb:cell 3:2"."""
    where = os.path.relpath(path)
    if not is_notebook(path):
        return f"{where}:{line}"
    before = 0
    for number, script in _script_of_cells(_read(read_regular(Path(path)).decode(), path), path).items():
        if line <= before + script.count("\n"):
            return f"{where}:cell {number}:{line - before - _LINES_OF_TITLE}"
        before += script.count("\n")
    return where


def with_script(text: str, script: str, where: str) -> str:
    """The notebook, whose code cells are those of an edited script, in the layout of its file.
    Raises Misconfigured where cells are missing."""
    notebook = _read(text, where)
    cells, (before, *parts) = _code_cells(notebook), _TITLES.split(script)
    if len(parts) != len(cells):
        raise Misconfigured("has other cells than its script", where=where, fix="remove comments such as # %% cell 1")
    parts[0] = before + parts[0]
    for cell, part in zip(cells.values(), parts, strict=True):
        source = _COMMENTED.sub(r"\1\2", part.removesuffix("\n"))
        if source != _source(cell):
            cell["source"] = source.splitlines(keepends=True)
    layout, end = _FIRST_INDENTATION.match(text), text[len(text.rstrip()) :]
    indent = layout[1] if layout else None
    separators = None if layout or '": ' in text[:100] else (",", ":")  # of a file in one line
    written = json.dumps(notebook, indent=indent, separators=separators, ensure_ascii=text.isascii())
    return (written.replace("\n", "\r\n") if "\r\n" in text else written) + end


def _read(text: str, where: str) -> dict[str, Any]:
    try:
        notebook = json.loads(text)
        language = notebook["metadata"].get("language_info", {}).get("name", "python")
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise Misconfigured("is not a notebook of format 4", where=where, fix="save it again by Jupyter") from error
    if language != "python" or not _code_cells(notebook):
        raise Misconfigured("has no code in Python", where=where)
    return notebook


def _code_cells(notebook: dict[str, Any]) -> dict[int, dict[str, Any]]:
    """number, from 1 among all cells -> the cell."""
    cells = enumerate(notebook.get("cells", []), start=1)
    return {number: cell for number, cell in cells if cell["cell_type"] == "code"}


def _script_of_cells(notebook: dict[str, Any], where: str) -> dict[int, str]:
    cells = _code_cells(notebook).items()
    return {number: f"{_TITLE.format(number=number)}{_python(cell, number, where)}\n" for number, cell in cells}


def _source(cell: dict[str, Any]) -> str:
    return "".join(cell["source"])


def _python(cell: dict[str, Any], number: int, where: str) -> str:
    source = _source(cell)
    if _is_python(source):
        return source
    place = f"{where}, cell {number}"
    whole = _OF_WHOLE_CELL.match(source)
    if whole is not None and whole[1] not in _HARMLESS:
        raise Misconfigured(f"is %%{whole[1]}, which only a notebook runs", where=place, fix="remove the cell")
    commented = _MAGIC.sub(_comment, source)
    if not _is_python(commented):
        fix = "write its lines in Python; whole lines of % and ! are skipped"
        raise Misconfigured("is not Python", where=place, fix=fix)
    return commented


def _comment(magic: re.Match[str]) -> str:
    return f"{magic[1]}{'pass  ' if magic[1] else ''}# {_MARK}{magic[2]}"


def _is_python(source: str) -> bool:
    try:
        ast.parse(source)
    except (SyntaxError, ValueError):
        return False
    return True
