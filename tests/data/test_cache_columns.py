"""Uniform samples are checked in blocks before they become columns, and the check finds what reading one would."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hasten.data.cache import cache_columns
from hasten.data.cache.cache_columns import first_damaged
from hasten.data.cache.cache_file import Cached, Writer
from hasten.data.cache.sample_format import packed
from hasten.errors import StorageFailed

SAMPLES = {
    "numbers": lambda number: number,
    "rows and labels": lambda number: (torch.full((3, 7), number), number),
    "pictures": lambda number: (np.full((3, 8, 8), number, np.uint8), np.float32(number)),
    "without a value": lambda number: torch.zeros(0, 3),
}


def written(folder: Path, kind: str, count: int, key: str = "key") -> Cached:
    folder.mkdir(exist_ok=True)
    writer = Writer(folder, key)
    for number in range(count):
        writer.add(packed(SAMPLES[kind](number)))
    writer.finish("about")
    return Cached(folder)


def damaged(cached: Cached, progress: Any = lambda done, samples: None, **other: Any) -> int | None:
    given = {"index": cached._index, "data": cached._data, "salt": cached._salt, "checked": cached._checked} | other
    return first_damaged(**given, progress=progress)


@pytest.mark.parametrize(("block", "blocks"), [(1, 50), (1 << 24, 1)])
@pytest.mark.parametrize("kind", SAMPLES)
@pytest.mark.parametrize("key", ["key", "another"])
def test_samples_that_are_as_they_were_written_are_whole(tmp_path, monkeypatch, kind, block, blocks, key):
    monkeypatch.setattr(cache_columns, "BLOCK", block)
    cached, told = written(tmp_path / "c", kind, 50, key), list[tuple[int, int]]()
    assert damaged(cached, lambda done, samples: told.append((done, samples))) is None
    assert cached._checked[:50].all()
    assert [done for done, _ in told] == sorted({done for done, _ in told})
    assert told[-1] == (50, 50)
    assert len(told) == blocks


def test_numbers_of_samples_beyond_what_a_checksum_can_begin_at_start_anew(tmp_path, monkeypatch):
    monkeypatch.setattr("hasten.data.cache.cache_file._salt_of", lambda key: 2**32 - 3)
    assert damaged(written(tmp_path / "c", "numbers", 9)) is None


@given(
    kind=st.sampled_from(sorted(SAMPLES)),
    count=st.integers(1, 20),
    block=st.integers(1, 3000),
    place=st.integers(0, 10**9),
    bit=st.integers(0, 7),
    part=st.sampled_from(["index", "data"]),
)
def test_any_flipped_bit_is_found_in_the_sample_that_reading_one_by_one_finds(
    tmp_path_factory, kind, count, block, place, bit, part
):
    cached = written(tmp_path_factory.mktemp("cache"), kind, count)
    found = {"index": cached._index, "data": cached._data}[part].copy()
    if not found.size:
        return
    found.reshape(-1).view(np.uint8)[place % found.nbytes] ^= 1 << bit
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(cache_columns, "BLOCK", block)
        wrong = damaged(cached, **{part: found})
        assert wrong is not None
        assert not cached._checked[wrong]
        patched.setattr(cached, "_" + part, found)
        for index in range(wrong):
            cached[index]
        with pytest.raises(StorageFailed, match=f"sample {wrong} is not as it was written"):
            cached[wrong]


def test_samples_that_have_changed_places_are_found(tmp_path):
    cached = written(tmp_path / "c", "numbers", 9)
    index, data = cached._index.copy(), cached._data.reshape(9, -1).copy()
    index[[3, 4]], data[[3, 4]] = index[[4, 3]], data[[4, 3]]
    assert damaged(cached, index=index, data=data.reshape(-1)) == 3


def test_what_was_checked_before_is_not_read_again(tmp_path, monkeypatch):
    monkeypatch.setattr(cache_columns, "BLOCK", 1)
    cached = written(tmp_path / "c", "numbers", 9)
    cached._checked[:5] = True
    assert damaged(cached, data=np.zeros_like(cached._data)) == 5
    cached._checked[:9] = True
    assert damaged(cached, data=np.zeros_like(cached._data)) is None


def test_the_check_holds_no_more_for_many_samples(tmp_path, monkeypatch):
    monkeypatch.setattr(cache_columns, "BLOCK", 1 << 16)
    cached = written(tmp_path / "c", "numbers", 20_000)
    tracemalloc.start()
    try:
        assert damaged(cached) is None
        assert tracemalloc.get_traced_memory()[1] < 1 << 18
    finally:
        tracemalloc.stop()
