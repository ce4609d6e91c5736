"""Process groups that the tests of a file share."""

from __future__ import annotations

import pytest

from support.ranks.process_group import RankGroup


@pytest.fixture(scope="module")
def run_on(tmp_path_factory):
    """(ranks, function, arguments) -> what the function returned on each of so many ranks, which stay for the file."""
    groups: dict[int, RankGroup] = {}

    def run(size, function, *arguments):
        if size not in groups:
            groups[size] = RankGroup(size, tmp_path_factory.mktemp("ranks"))
        try:
            return groups[size].run(function, *arguments)
        except AssertionError:
            del groups[size]
            raise

    yield run
    for group in groups.values():
        group.close()
