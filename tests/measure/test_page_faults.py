"""Pages that are new to a process are counted, and one of them costs what is measured here."""

from __future__ import annotations

import mmap
import sys

import pytest

from hasten.measure.page_faults import PAGE_BYTES, fault_seconds, page_faults

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="others map memory in their own ways")


def test_each_page_that_is_touched_first_is_counted_and_none_that_is_touched_again():
    pages = 64
    with mmap.mmap(-1, pages * PAGE_BYTES) as memory:
        memory.madvise(mmap.MADV_NOHUGEPAGE)
        before = page_faults()
        for page in range(pages):
            memory[page * PAGE_BYTES] = 1
        new = page_faults() - before
        for page in range(pages):
            memory[page * PAGE_BYTES] = 2
        again = page_faults() - before - new
    assert pages <= new < 2 * pages
    assert again < pages


def test_a_new_page_costs_something():
    assert 0 < fault_seconds() < 1e-3
