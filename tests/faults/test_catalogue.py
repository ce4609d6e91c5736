"""Every row of the fault catalogue that one machine can show has a test."""

from __future__ import annotations

from functools import cache
from itertools import chain

from faults.catalogue import ROWS
from shape.source import sources
from shape.tags import faults


@cache  # and not while tests are collected, which each process does
def tags_by_file() -> dict[str, set[object]]:
    return {source.path: faults(source) for source in sources("tests") if "mark.fault" in source.text}


def test_every_row_has_a_test():
    missing = ROWS.keys() - set(chain.from_iterable(tags_by_file().values()))
    assert not missing, f"no test is tagged with {', '.join(sorted(missing))}"


def test_no_test_is_tagged_with_a_row_that_does_not_exist():
    for path, rows in tags_by_file().items():
        assert rows <= ROWS.keys(), path
