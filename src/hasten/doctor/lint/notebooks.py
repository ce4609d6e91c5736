"""Jupyter notebooks: their code cells, joined to one text, as a person runs them from top to bottom.

Lines that are none of Python (`%matplotlib inline`, `!pip install`) become `pass`, so each line keeps its number.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from hasten.errors import Unreadable

_MAGIC = re.compile(r"^(\s*)(?:%{1,2}[A-Za-z]|!|\?|[\w.\[\]]+\?{1,2}\s*$)")
_ASSIGNED_MAGIC = re.compile(r"^(\s*[\w, ]+=\s*)[%!].*")
_KEEPS_PYTHON = re.compile(r"^%%(?:time|timeit|capture|prun|python3?)\b")


@dataclass(frozen=True, slots=True)
class Cell:
    """number: from 1, among all cells. first_line: of its text in the joined one, from 1. text: ends without a line
    end."""

    number: int
    first_line: int
    text: str


def cells_of(text: str, where: str) -> tuple[Cell, ...]:
    """The code cells of a notebook of format 4 (https://nbformat.readthedocs.io). Raises Unreadable."""
    try:
        notebook = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Unreadable(f"is no notebook: {error}", where=where) from error
    if not isinstance(notebook, dict) or not isinstance(notebook.get("cells"), list):
        raise Unreadable("is no notebook of format 4", where=where)
    if not _is_python(notebook):
        return ()
    found, line = list[Cell](), 1
    for number, cell in enumerate(notebook["cells"], start=1):
        if isinstance(cell, dict) and cell.get("cell_type") == "code":
            content = source_of(cell)
            found.append(Cell(number, line, content))
            line += content.count("\n") + 1
    return tuple(found)


def source_of(cell: dict[str, Any]) -> str:
    """A cell's text, which is kept whole or as lines."""
    source = cell.get("source", "")
    whole = "".join(map(str, source)) if isinstance(source, list) else str(source)
    return re.sub(r"\r\n|\r", "\n", whole)


def text_of_cells(cells: Iterable[Cell]) -> str:
    return "\n".join(_as_python(cell.text) for cell in cells)


def _is_python(notebook: dict[str, Any]) -> bool:
    metadata = notebook.get("metadata")
    language = metadata.get("language_info") if isinstance(metadata, dict) else None
    name = language.get("name", "python") if isinstance(language, dict) else "python"
    return str(name).lower().startswith("python")


def _as_python(text: str) -> str:
    lines = text.split("\n")
    first = next((line.strip() for line in lines if line.strip()), "")
    if first.startswith("%%") and not _KEEPS_PYTHON.match(first):
        return "\n" * (len(lines) - 1)  # a cell of another language
    found, continued = list[str](), False
    for line in lines:
        magic = _MAGIC.match(line)
        if continued:
            found.append("")
        elif magic:
            found.append(f"{magic.group(1)}pass")
        else:
            found.append(_ASSIGNED_MAGIC.sub(r"\1None", line))
        continued = (continued or bool(magic)) and line.endswith("\\")
    return "\n".join(found)
