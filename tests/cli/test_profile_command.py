"""What the looking commands say, where a run on this machine cannot show it."""

from __future__ import annotations

import pytest

from hasten.cli.answers import fragments


@pytest.mark.parametrize(
    ("share", "says"),
    [
        (None, "nothing to measure: torch keeps no cache of memory on a processor"),
        (0.0, "0 % of the memory that torch holds lies free between pieces in use"),
        (0.31, "31 % of the memory that torch holds lies free between pieces in use (hasten explain allocator)"),
    ],
)
def test_fragmentation_is_told_and_many_fragments_with_their_remedy(share: float | None, says: str):
    assert fragments(share) == says
