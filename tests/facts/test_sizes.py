"""Bytes as people read them."""

from __future__ import annotations

import pytest

from hasten.facts.sizes import byte_size


@pytest.mark.parametrize(
    ("size", "shown"),
    [
        (0, "0 B"),
        (512, "512 B"),
        (1000, "0.98 KiB"),
        (1536, "1.50 KiB"),
        (16 << 30, "16.0 GiB"),
        (431 << 20, "431 MiB"),
        (1 << 60, "1024 PiB"),
    ],
)
def test_bytes_are_shown_in_powers_of_1024(size: int, shown: str):
    assert byte_size(size) == shown
