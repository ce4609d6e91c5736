"""What the looking commands say, where a run on this machine cannot show it."""

from __future__ import annotations

import pytest

from hasten.cli.profile_command import fragments


@pytest.mark.parametrize(
    ("share", "says"),
    [
        (None, "not measured: torch caches no memory on a CPU"),
        (0.0, "0 % of the memory that torch has reserved is free, between blocks in use"),
        (0.31, "31 % of the memory that torch has reserved is free, between blocks in use (hasten explain allocator)"),
    ],
)
def test_fragmentation_is_told_and_many_fragments_with_their_remedy(share: float | None, says: str):
    assert fragments(share) == says
