"""On which line a TOML document says something, for errors that name the line.

A parser returns values without their places. TOML is a sequence of statements, each a table header or `key = value`,
and every statement is a valid document by itself. So tomllib can tell where one ends, also a value of many lines, and
no second grammar of TOML is needed.
"""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, cast

from hasten.facts.record_reading import Location

LONGEST_STATEMENT = 200  # lines; the search ends at a longer one, so that no document can make it slow


def statement_lines(text: str) -> dict[Location, int]:
    """The line, counted from 1, of every table and key of a valid document, by its location."""
    lines, table, seen = dict[Location, int](), Location(), Counter[Location]()
    for line, statement in _statements(text):
        found, start = tomllib.loads(statement), statement.lstrip()
        if start.startswith("["):
            table = _opened_table(found, start.startswith("[["), seen)
            stated = [table]
        else:
            stated = [(*table, *path) for path in _paths(found)]
        for location in stated:
            for length in range(1, len(location) + 1):
                lines.setdefault(location[:length], line)
    return lines


def line_of(lines: Mapping[Location, int], location: Location) -> int:
    """The line of this location, or of the innermost part of it that is there; 1 where none is."""
    while location and location not in lines:
        location = location[:-1]
    return lines.get(location, 1)


def _statements(text: str) -> Iterator[tuple[int, str]]:
    """Each statement with its first line; comments and empty lines are skipped."""
    start, lines = 1, list[str]()
    for number, line in enumerate(text.split("\n"), start=1):
        start = start if lines else number
        lines.append(line)
        statement = "\n".join(lines) + "\n"  # a carriage return is valid only before a line feed
        if not _is_complete(statement):
            if len(lines) == LONGEST_STATEMENT:
                return
            continue
        if tomllib.loads(statement):
            yield start, statement
        lines.clear()


def _is_complete(statement: str) -> bool:
    try:
        tomllib.loads(statement)
    except tomllib.TOMLDecodeError:
        return False
    return True


def _opened_table(header: dict[str, Any], is_array: bool, seen: Counter[Location]) -> Location:
    """The location of the table that a header opens; `seen` counts the tables of each array so far."""
    path: Location = ()
    inner: Any = header
    while inner:
        ((key, inner),) = inner.items()
        path += (key,)
        if isinstance(inner, list):
            inner = cast("list[Any]", inner)[0]
        if is_array and not inner:
            seen[path] += 1
        if seen[path]:
            path += (seen[path] - 1,)
    return path


def _paths(value: Any) -> Iterator[Location]:
    """The path to every value inside nested tables."""
    if isinstance(value, dict) and value:
        for key, inner in cast("dict[str, Any]", value).items():
            yield from ((key, *path) for path in _paths(inner))
    else:
        yield ()
