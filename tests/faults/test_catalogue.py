"""Every row of the fault catalogue that one machine can show has a test."""

from __future__ import annotations

from functools import cache
from itertools import chain

from faults.catalogue import ROWS, tags
from shape import Source, sources


@cache  # and not while tests are collected, which each process does
def tags_by_file() -> dict[str, set[str]]:
    return {source.path: tags(source) for source in sources("tests") if "mark.fault" in source.text}


def test_every_row_has_a_test():
    missing = ROWS.keys() - set(chain.from_iterable(tags_by_file().values()))
    assert not missing, f"no test is tagged with {', '.join(sorted(missing))}"


def test_no_test_is_tagged_with_a_row_that_does_not_exist():
    for path, rows in tags_by_file().items():
        assert rows <= ROWS.keys(), path


def test_a_tag_is_found_wherever_it_can_stand():
    text = (
        "import pytest\n"
        'pytestmark = [pytest.mark.fault("a"), pytest.mark.gpu]\n'
        '@pytest.mark.fault("b")\n'
        '@pytest.mark.parametrize("x", [pytest.param(1, marks=pytest.mark.fault("c"))])\n'
        "def test_it(x): ...\n"
        '@pytest.mark.fault("no test")\n'
        "def helper(): ...\n"
    )
    assert tags(Source("tests/test_planted.py", text)) == {"a", "b", "c"}
