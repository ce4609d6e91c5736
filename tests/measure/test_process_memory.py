"""What a process holds, and held at most."""

from __future__ import annotations

import mmap

from hasten.measure.process_memory import peak_resident_bytes, resident_bytes


def test_the_peak_of_a_process_stays_when_memory_is_given_back():
    before = resident_bytes()
    with mmap.mmap(-1, 64 << 20) as taken:  # an allocator may have as much at hand, which is resident already
        taken.write(b"x" * len(taken))
        assert resident_bytes() >= before + (60 << 20)
    assert peak_resident_bytes() >= before + (60 << 20)
