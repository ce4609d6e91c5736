"""Bytes as people read and write them."""

from __future__ import annotations

import pytest

from hasten.errors import Misconfigured
from hasten.facts.formatting import byte_size, read_bytes, read_rate


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


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("80GB", 80 * 10**9),
        ("80GiB", 80 << 30),
        ("1.5 TB", 15 * 10**11),
        ("512B", 512),
        ("2KiB", 2048),
        ("2PB", 2 * 10**15),
    ],
)
def test_a_size_is_read_in_the_powers_of_its_unit(text: str, size: int):
    assert read_bytes(text, "--memory") == size


@pytest.mark.parametrize(
    "text", ["80", "80G", "80gb", "GB", "-80GB", "0GB", "80GB/s", "8e1GB", "80 GB ", "٨٠GB", "1,5GB", ""]
)
def test_a_size_without_a_number_or_its_whole_unit_is_refused(text: str):
    with pytest.raises(Misconfigured) as refused:
        read_bytes(text, "--memory")
    assert (refused.value.what, refused.value.where) == (f"is {text!r}", "--memory")
    assert "80GB or 80GiB" in refused.value.fix


def test_a_rate_is_read_by_its_prefix():
    assert (read_rate("300T", "--flops"), read_rate("1.5P", "--flops")) == (3 * 10**14, 15 * 10**14)
    with pytest.raises(Misconfigured, match="is '300'"):
        read_rate("300", "--flops")
