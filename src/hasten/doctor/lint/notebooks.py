"""Jupyter notebooks: their code cells, joined to one text, as a person runs them from top to bottom.

Lines that are not Python (`%matplotlib inline`, `!pip install`) become `pass`, so each line keeps its number.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass

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
    """The code cells of a notebook of format 4 (https://nbformat.readthedocs.io); none of one in another language than
    Python. Raises Unreadable."""
    try:
        notebook = json.loads(text)
        language = notebook.get("metadata", {}).get("language_info", {}).get("name", "python")
        cells = [(each["cell_type"], each.get("source", "")) for each in notebook["cells"]]
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError) as error:
        raise Unreadable(f"is not a notebook of format 4: {error}", where=where) from error
    if not str(language).lower().startswith("python"):
        return ()
    found, line = list[Cell](), 1
    for number, (kind, source) in enumerate(cells, start=1):
        if kind == "code":
            whole = "".join(map(str, source))  # a text, or a list of lines
            content = re.sub(r"\r\n|\r", "\n", whole)
            found.append(Cell(number, line, content))
            line += content.count("\n") + 1
    return tuple(found)


def text_of_cells(cells: Iterable[Cell]) -> str:
    return "\n".join(_as_python(cell.text) for cell in cells)


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
