"""Pages that are new to a process are counted, and one of them costs what is measured here."""

from __future__ import annotations

import ctypes
import mmap
import sys
from itertools import count
from pathlib import Path

import pytest

from hasten.measure import process_memory as module
from hasten.measure.process_memory import fault_cost, page_faults

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="others map memory in their own ways")


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


def test_a_new_page_costs_something():
    found = fault_cost()
    assert 0 < found.seconds < 1e-3
    assert found.bytes >= 0.9 * mmap.PAGESIZE  # the probe is not all that is new meanwhile


def test_a_system_that_maps_many_pages_at_once_is_asked_how_many(monkeypatch):
    told = count(0, 8)
    monkeypatch.setattr(module, "page_faults", lambda: next(told))
    assert fault_cost().bytes == 2 << 20


def test_what_is_touched_is_memory_of_its_own_as_an_allocator_has_it(monkeypatch):
    kinds, mapped = list[str](), mmap.mmap

    def mapping(*arguments, **named):
        memory = mapped(*arguments, **named)
        place = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        for line in Path("/proc/self/maps").read_text().splitlines():
            begin, end = (int(each, 16) for each in line.split()[0].split("-"))
            kinds.extend([line.split()[1][3]] if begin <= place < end else [])
        return memory

    monkeypatch.setattr(mmap, "mmap", mapping)
    fault_cost()
    assert {*kinds} == {"p"}
