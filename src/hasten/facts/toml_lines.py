"""On which line a TOML document says something.

A parser hands back values and forgets where they stood; an error about a value needs the place. TOML is a sequence of
statements, each a table header or `key = value`, and every statement is by itself a valid document. So tomllib can
tell where one ends, a value of many lines included, and no second grammar of TOML is needed here.
"""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, cast

LONGEST_STATEMENT = 200  # lines; the search ends at a longer one, so that no document can make it slow

Location = tuple[str | int, ...]


def line_of(text: str, location: Sequence[str | int]) -> int:
    """The line, counted from 1, where a valid document states what lies at `location`.

    location: keys of tables and positions in arrays, such as ("choice", 0, "value"). Where nothing lies there, the line
        of the innermost part of it that exists; 1 when no part does.
    """
    wanted = tuple(location)
    best_line, best_depth = 1, 0
    table: Location = ()
    seen: Counter[Location] = Counter()
    for line, statement in _statements(text):
        found = tomllib.loads(statement)
        if statement.lstrip().startswith("["):
            table = _opened_table(found, statement.lstrip().startswith("[["), seen)
            depth = _shared_length(table, wanted)
        elif wanted[: len(table)] == table:
            depth = len(table) + _depth(found, wanted[len(table) :])
        else:
            continue
        if depth > best_depth:
            best_line, best_depth = line, depth
    return best_line


def lines_of_tables(text: str, name: str) -> list[int]:
    """The line of each table in the array of tables `name` of a valid document, in their order.

    An array written inline, as name = [{…}, {…}], has one line for all of them. Tables after a statement that is longer
    than LONGEST_STATEMENT are not found, so there may be fewer lines than tables.
    """
    lines = list[int]()
    in_a_table = False
    for line, statement in _statements(text):
        found = tomllib.loads(statement)
        is_header = statement.lstrip().startswith("[")
        in_a_table = in_a_table or is_header
        if is_header and found == {name: [{}]}:
            lines.append(line)
        elif not in_a_table and name in found:
            lines += [line] * len(found[name])
    return lines


def _statements(text: str) -> Iterator[tuple[int, str]]:
    """Each statement with the line it begins on; comments and empty lines between them are left out."""
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


def _depth(value: Any, location: Location) -> int:
    """How many steps of `location` lead somewhere inside a value."""
    if not location:
        return 0
    try:
        return 1 + _depth(value[location[0]], location[1:])
    except (KeyError, IndexError, TypeError):
        return 0


def _shared_length(one: Location, other: Location) -> int:
    return next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
