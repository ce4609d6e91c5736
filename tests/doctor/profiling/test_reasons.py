"""An exception told in one line."""

from __future__ import annotations

import pytest

from hasten.doctor.profiling.user_lines import reason_of


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ("nothing to tell", "nothing to tell"),
        ("\n  the disk is full  \nand more", "the disk is full"),
        ("", "ValueError"),
        (" \n\t\n", "ValueError"),
        ("\x1b\n\x1b[31mred", "[31mred"),
    ],
)
def test_a_reason_is_the_first_line_that_says_anything(message, reason):
    assert reason_of(ValueError(message)) == reason
