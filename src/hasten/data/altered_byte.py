"""Where the one byte is that was altered, told by the CRC-32 that the bytes should have.

A CRC is linear: the CRCs of two texts of one length differ by what depends only on where the texts differ, and how. So
the difference is taken back byte by byte from the end, until it is one that a single byte makes there. A damaged file
can then be told by the byte, without a second copy of it.

It is a guess that is nearly always right. Where more than one byte was altered there is mostly no such place, and once
in 17 million bytes a wrong one.
"""

from __future__ import annotations

import zlib

MOST_BYTES = 1 << 22  # a second's work

_ZERO = zlib.crc32(b"\0")
_MADE_BY = {zlib.crc32(bytes([value])) ^ _ZERO for value in range(1, 256)}  # differences, by the last byte alone


def _shifted() -> list[int]:
    """What eight steps of the CRC's register make of each low byte."""
    table = list[int]()
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (0xEDB88320 if value & 1 else 0)
        table.append(value)
    return table


_TABLE = _shifted()
_LOW_BYTE = {value >> 24: low for low, value in enumerate(_TABLE)}  # the high bytes of the table are all different


def altered_byte(content: bytes, crc32: int) -> int | None:
    """The place of a byte that, were it another one, would give the content this CRC-32; None when there is none, or
    the content is longer than MOST_BYTES."""
    difference = zlib.crc32(content) ^ crc32
    if difference == 0 or len(content) > MOST_BYTES:
        return None
    for place in range(len(content) - 1, -1, -1):
        if difference in _MADE_BY:
            return place
        low = _LOW_BYTE[difference >> 24]
        difference = ((difference ^ _TABLE[low]) << 8 | low) & 0xFFFFFFFF
    return None
