"""A cache is whole or it is not a cache, and it never gives a wrong sample."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from hasten.data.cache.cache_file import DATA, INDEX, MANIFEST, Cached, Damaged
from hasten.errors import StorageFailed
from support.data.cache_files import change, ragged, written
from support.data.cached_samples import same


def as_read(samples: list) -> list:
    return samples


@pytest.mark.trap(40)
@pytest.mark.parametrize(("workers", "start"), [(0, None), (2, "fork")])
def test_workers_of_every_kind_read_the_same_samples(tmp_path, workers, start):
    cached = Cached(written(tmp_path / "c", [ragged(number) for number in range(9)]))
    loader = DataLoader(cached, 2, num_workers=workers, multiprocessing_context=start, collate_fn=as_read)
    assert same([sample for batch in loader for sample in batch], [ragged(number) for number in range(9)])


@pytest.mark.trap(41)
def test_to_change_a_sample_in_place_never_reaches_the_file(tmp_path):
    cached = Cached(written(tmp_path / "c", [ragged(3)]))
    numbers, rest = cached[0]
    numbers.zero_()
    rest["picture"][:] = 0
    assert same(cached[0], ragged(3))


def read_all(cached: Cached, samples: list) -> int:
    """Every sample is as it was, or refused; how many were refused."""
    refused = list[str]()
    for index, sample in enumerate(samples):
        try:
            found = cached[index]
        except StorageFailed as error:
            refused.append(error.where)
            continue
        assert same(found, sample)
    assert refused == [str(cached.folder)] * len(refused)
    return len(refused)


@settings(max_examples=30)
@given(name=st.sampled_from([DATA, INDEX, MANIFEST]), position=st.integers(0, 10**6))
def test_a_flipped_bit_anywhere_never_gives_another_sample(tmp_path_factory, name, position):
    samples = [ragged(number) for number in range(4)]
    folder = written(tmp_path_factory.mktemp("cache"), samples)
    change(folder / name, position % (folder / name).stat().st_size)
    if name == MANIFEST:
        with pytest.raises(Damaged, match=name):
            Cached(folder)
        return
    assert read_all(Cached(folder), samples) == 1


def test_no_other_sample_and_none_of_another_cache_can_stand_in_the_place_of_one(tmp_path):
    folder = written(tmp_path / "c", [torch.ones(16), torch.zeros(16)])
    index = np.fromfile(folder / INDEX, np.int64).reshape(2, -1)
    index[::-1].tofile(folder / INDEX)
    assert read_all(Cached(folder), [torch.ones(16), torch.zeros(16)]) == 2
    mine, other = (written(tmp_path / key, [torch.full((16,), n)], key) for n, key in enumerate(("mine", "other")))
    for name in (DATA, INDEX):
        (mine / name).write_bytes((other / name).read_bytes())
    assert read_all(Cached(mine), [torch.zeros(16)]) == 1


def test_a_cache_that_was_found_damaged_is_not_opened_again(tmp_path):
    folder = written(tmp_path / "c", [torch.ones(100), torch.zeros(100)])
    change(folder / DATA, 500)
    cached = Cached(folder)
    with pytest.raises(StorageFailed, match="run it again: the cache is rebuilt"):
        cached[1]
    with pytest.raises(Damaged, match=f"{MANIFEST} cannot be read"):
        Cached(folder)
