"""What the looking commands say, where a run on this machine cannot show it."""

from __future__ import annotations

import pytest

from hasten.cli.profile_command import fragments
from support.cli.commands import ran


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


def test_a_schedule_of_too_many_steps_is_refused_before_it_is_drawn(tmp_path):
    text = "from support import small_job\n\ndef job():\n    return small_job(epochs=None, max_steps=20_000_000)\n"
    (tmp_path / "long_jobs.py").write_text(text)
    code, _, error = ran("schedule long_jobs.py:job")
    assert code == 2
    assert "has 20,000,000 steps, and a schedule is drawn for 2,000,000 at most" in error
