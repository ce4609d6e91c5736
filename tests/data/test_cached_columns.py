"""Columns of a cache lie in its file, hold what the samples hold, and are checked before they are given out."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hasten.data.cache.cache_file import DATA, INDEX, Cached
from hasten.errors import StorageFailed
from support.data.cache_files import BAD, change, row, written
from support.data.cached_samples import FORMS, same


def test_uniform_samples_are_columns_in_the_file(tmp_path):
    cached = Cached(written(tmp_path / "c", [row(number) for number in range(5)]))
    columns = cached.columns()
    assert [*columns] == ["row", "label", "weight", "good"]
    for name, column in columns.items():
        assert np.shares_memory(column, cached._data)
        assert not column.flags.writeable
        wanted = np.stack([np.asarray(row(number)[name]) for number in range(5)])
        assert column.dtype == wanted.dtype
        assert (column == wanted).all()


@given(form=FORMS, count=st.integers(1, 5))
def test_columns_hold_what_the_samples_hold_wherever_there_are_any(tmp_path_factory, form, count):
    cached = Cached(written(tmp_path_factory.mktemp("cache"), [form(seed) for seed in range(count)]))
    columns = cached.columns()
    if columns is None:
        return
    for index in range(count):
        sample = cached.view(index)
        if isinstance(columns, dict):
            assert all(same(np.array(columns[key][index]), np.array(sample[key])) for key in sample)
        elif isinstance(columns, np.ndarray):
            assert same(np.array(columns[index]), np.array(sample))
        else:
            assert type(columns) is type(sample)
            parts = zip(columns, sample, strict=True)
            assert all(same(np.array(column[index]), np.array(part)) for column, part in parts)


@pytest.mark.parametrize(
    "samples",
    [
        [torch.ones(2), torch.ones(3)],
        [(1, "text")] * 2,
        [(1, (2, 3))] * 2,
        [torch.ones(2, 3).t()] * 2,
        [torch.ones(2, dtype=torch.bfloat16)] * 2,
        [()] * 2,
        [None] * 2,
    ],
    ids=["other shapes", "text", "nested", "other layout", "a dtype that numpy has not", "nothing in it", "None"],
)
def test_other_samples_are_no_columns(tmp_path, samples):
    assert Cached(written(tmp_path / "c", samples)).columns() is None


def test_columns_are_checked_before_they_are_given_out(tmp_path):
    folder = written(tmp_path / "c", [row(number) for number in range(5)])
    change(folder / DATA, -200)
    with pytest.raises(StorageFailed, match="sample 4 is not as it was written"):
        Cached(folder).columns()


def test_all_samples_are_checked_before_columns_are_given_out_however_many(tmp_path):
    folder = written(tmp_path / "c", [*range((1 << 16) + 2)])
    change(folder / DATA, -64)
    with pytest.raises(StorageFailed, match="sample 65537 is not as it was written"):
        Cached(folder).columns()


def test_it_is_told_how_far_the_check_is(tmp_path):
    told = list[tuple[int, int]]()
    Cached(written(tmp_path / "c", [row(number) for number in range(5)])).columns(lambda *step: told.append(step))
    assert told == [(5, 5)]


@given(place=st.integers(0, 8 * 5 - 1), bit=st.integers(0, 7))
def test_columns_are_not_built_from_an_index_that_was_changed(tmp_path_factory, place, bit):
    folder = written(tmp_path_factory.mktemp("c") / "c", [row(number) for number in range(3)])
    data = bytearray((folder / INDEX).read_bytes())
    data[place] ^= 1 << bit
    (folder / INDEX).write_bytes(data)
    with pytest.raises(StorageFailed, match="is not as it was written"):
        Cached(folder).columns()


def test_where_one_could_not_be_read_there_are_no_columns(tmp_path):
    assert Cached(written(tmp_path / "c", [row(0), BAD, row(2)])).columns() is None
