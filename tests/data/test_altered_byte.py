"""A damaged text tells where it was altered, by its checksum alone."""

import zlib

from hypothesis import given
from hypothesis import strategies as st

from hasten.data import altered_byte as module
from hasten.data.altered_byte import altered_byte


@given(st.data(), st.binary(min_size=1, max_size=3000), st.integers(1, 255))
def test_one_altered_byte_is_found_wherever_it_is(data, content, change):
    place = data.draw(st.integers(0, len(content) - 1))
    altered = content[:place] + bytes([content[place] ^ change]) + content[place + 1 :]
    assert altered_byte(altered, zlib.crc32(content)) == place


@given(st.binary(min_size=10, max_size=300), st.integers(1, 255))
def test_what_is_whole_or_altered_twice_names_no_byte(content, change):
    assert altered_byte(content, zlib.crc32(content)) is None
    twice = bytes([content[0] ^ change]) + content[1:-1] + bytes([content[-1] ^ change])
    assert altered_byte(twice, zlib.crc32(content)) is None


def test_what_is_too_long_is_not_looked_through(monkeypatch):
    monkeypatch.setattr(module, "MOST_BYTES", 9)
    assert altered_byte(b"x" * 9, zlib.crc32(b"x" * 8 + b"y")) == 8
    assert altered_byte(b"x" * 10, zlib.crc32(b"x" * 9 + b"y")) is None
