"""Places in TOML documents."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hasten.facts.record_reading import Location
from hasten.facts.toml_lines import LONGEST_STATEMENT, line_of, statement_lines

DOCUMENT = '''\
# a plan
schema = 1
job = { source = "a", parameters = 1 } # job

[machine]
cores = 2
"odd.key" = """
[[choice]]
technique = "not one"
"""

[[choice]]
technique = "a"
value = [
  1, # ]
  2,
]
speedup.ratio = 2

[[rejected]]
technique = "z"

  [[ "choice" ]]
technique = "b"
[choice.options]
deep = 3

[total]
x = 1
[machine.more]
y = 2
'''


def found(text: str, location: Location) -> int:
    return line_of(statement_lines(text), location)


@pytest.mark.parametrize(
    ("location", "line"),
    [
        (("schema",), 2),
        (("job",), 3),
        (("job", "parameters"), 3),
        (("machine",), 5),
        (("machine", "odd.key"), 7),
        (("choice", 0), 12),
        (("choice", 0, "value"), 14),
        (("choice", 0, "value", 1), 14),
        (("choice", 0, "speedup"), 18),
        (("choice", 0, "speedup", "ratio"), 18),
        (("choice", 1), 23),
        (("choice", 1, "options"), 25),
        (("choice", 1, "options", "deep"), 26),
        (("machine", "more", "y"), 31),
    ],
)
def test_every_kind_of_statement_is_found_on_its_line(location: tuple[str | int, ...], line: int):
    assert found(DOCUMENT, location) == line


@pytest.mark.parametrize(
    ("location", "line"),
    [(("choice", 0, "preserves"), 12), (("choice", 1, "options", "no"), 25), (("no",), 1), (("choice", 7), 12)],
)
def test_what_is_missing_is_placed_at_what_should_hold_it(location: tuple[str | int, ...], line: int):
    assert found(DOCUMENT, location) == line


def test_windows_line_ends_change_no_line():
    assert found(DOCUMENT.replace("\n", "\r\n"), ("choice", 1, "options", "deep")) == 26


def test_a_value_of_very_many_lines_ends_the_search_instead_of_slowing_it():
    text = "first = 1\nlong = [\n" + "1,\n" * LONGEST_STATEMENT + "]\nlast = 1\n"
    tomllib.loads(text)
    assert found(text, ("first",)) == 1
    assert found(text, ("last",)) == 1


KEYS = st.sampled_from(["a", "b", "c"])
FILLERS = st.sampled_from(["", "# [[a]]", 'text = """\n[a]\n"""', "many = [\n  1,\n]"])


@given(st.lists(st.tuples(KEYS, FILLERS), max_size=8))
def test_the_nth_table_of_an_array_is_found_whatever_lies_between(tables: list[tuple[str, str]]):
    lines: list[str] = []
    expected: dict[tuple[str, int], int] = {}
    for key, filler in tables:
        expected[key, sum(1 for name, _ in expected if name == key)] = len(lines) + 1
        lines += [f"[[{key}]]", *filler.split("\n")]
    text = "\n".join(lines)
    document: dict[str, Any] = tomllib.loads(text)
    assert sum(map(len, document.values())) == len(expected)
    for location, line in expected.items():
        assert found(text, location) == line
