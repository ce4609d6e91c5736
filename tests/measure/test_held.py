"""What a process holds, and held at most."""

from __future__ import annotations

from hasten.measure.held import peak_resident_bytes, resident_bytes


def test_the_peak_of_a_process_stays_when_memory_is_given_back():
    before = resident_bytes()
    taken = bytearray(b"x" * (64 << 20))
    assert resident_bytes() >= before + (60 << 20)
    del taken
    assert peak_resident_bytes() >= before + (60 << 20)
