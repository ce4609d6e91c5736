"""What bounds of findings about running jobs hold, whatever the machine is."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.run_looks import HEALTHY, exactly

from hasten.doctor.observe import found_in


def test_huge_pages_are_priced_and_told_by_what_each_of_them_brings():
    huge = replace(HEALTHY, page_bytes=2 << 20, page_seconds=1e-4)
    (grows,) = found_in(replace(huge, growth=8 << 20))
    assert grows.price is not None
    assert grows.price.seconds == pytest.approx(100 * 2 * 4e-4)
    (returned,) = found_in(replace(huge, new_pages=50.0, kept_memory=exactly(0.05)))
    assert "100 MiB of memory" in returned.message


def test_no_less_than_no_memory_is_told_to_be_new():
    found = found_in(replace(HEALTHY, new_pages=1.0, growth=8 << 20, kept_memory=exactly(0.05)))
    (returned,) = [each for each in found if each.code == "H715"]
    assert returned.message.startswith("0 B of memory")
