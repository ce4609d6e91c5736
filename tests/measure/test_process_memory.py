"""What a process holds and held at most, and what a page fault costs."""

from __future__ import annotations

import mmap
import sys

import pytest

from hasten.measure.process_memory import fault_cost, page_faults

ON_LINUX = pytest.mark.skipif(sys.platform != "linux", reason="others map memory in their own ways")


@ON_LINUX
def test_each_page_that_is_touched_first_is_counted_and_none_that_is_touched_again():
    pages = 64
    with mmap.mmap(-1, pages * mmap.PAGESIZE) as memory:
        memory.madvise(mmap.MADV_NOHUGEPAGE)
        before = page_faults()
        for page in range(pages):
            memory[page * mmap.PAGESIZE] = 1
        new = page_faults() - before
        for page in range(pages):
            memory[page * mmap.PAGESIZE] = 2
        again = page_faults() - before - new
    assert pages <= new < 2 * pages
    assert again < pages


@ON_LINUX
def test_a_new_page_costs_something():
    found = fault_cost()
    assert 0 < found.seconds < 1e-3
    assert found.bytes >= 0.9 * mmap.PAGESIZE  # the probe is not all that is new meanwhile
