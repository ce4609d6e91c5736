"""Several folders of pictures in a ConcatDataset: read as one, which changes no picture and no label."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, Subset

import hasten
from data.pictures import jpeg, photos, write
from hasten.data.cache.cached_source import Watcher, kept, why_not_cached
from hasten.data.loading.loader_options import LoaderOptions
from hasten.data.shards.shard_writer import PicturesInFolders, pack
from hasten.data.sources.job_data import Source, source_of, why_not_in_threads
from hasten.errors import DataFailed
from support import laptop
from support.data.cached_samples import same
from support.data.loaders import loader_of

VIEW = hasten.RandomResizedCrop(16)
STILL = hasten.CenterCrop(16)


@pytest.fixture(scope="module")
def roots(tmp_path_factory):
    home = tmp_path_factory.mktemp("folders")
    whole = photos(home / "a", 7), photos(home / "b", 5, classes=2), photos(home / "c", 3, classes=3)
    pack(PicturesInFolders(whole[1]), home / "packed", shard_bytes=20_000)
    return (*whole, home / "packed")


def folder(root: Any, view: Any = VIEW, **more: Any) -> hasten.ImageFolder:
    return hasten.ImageFolder(root, view, **more)


def read(data: Any) -> list[Any]:
    loader = loader_of(data)
    found = [[part.clone() for part in one.batch] for epoch in range(2) for one in loader.epoch(epoch)]
    loader.close()
    return found


def from_cache(source: Source, cache: Any) -> Source:
    watcher = Watcher(lambda text: None, lambda done, count: None)
    return kept(source, LoaderOptions(cache=cache), torch.device("cpu"), laptop(), watcher)


CASES = {
    "folders": lambda a, b, c, packed: [folder(a, STILL), folder(b, STILL), folder(c, STILL)],
    "parts": lambda a, b, c, packed: [Subset(folder(a, STILL), [6, 0, -1]), folder(b, STILL)],
    "nested": lambda a, b, c, packed: [folder(a, STILL) + folder(b, STILL), Subset(folder(c, STILL), [2, 1])],
    "shards": lambda a, b, c, packed: [folder(packed, STILL), folder(a, STILL)],
}


@pytest.mark.parametrize("case", CASES)
def test_each_sample_is_that_of_its_own_folder(roots, case):
    data = ConcatDataset(CASES[case](*roots))
    joined = source_of(data, field="train").dataset
    assert type(joined) is hasten.ImageFolder
    assert len(joined) == len(data)
    for index in [*range(len(data)), -1, -len(data)]:
        assert same(joined[index], data[index])


def test_a_part_of_several_folders_is_counted_over_all_of_them(roots):
    data = ConcatDataset([folder(roots[0], STILL), folder(roots[1], STILL)])
    part = source_of(Subset(data, [7, 0, 11, 6]), field="train").dataset
    assert same([part[index] for index in range(4)], [data[index] for index in (7, 0, 11, 6)])
    with pytest.raises(DataFailed, match="gives the index 12 at position 1, and there are 12 samples"):
        source_of(Subset(data, [7, 12]), field="train")


@pytest.mark.trap(41)
def test_they_are_read_by_threads_and_from_a_cache_as_one_folder_is(roots, tmp_path):
    source = source_of(ConcatDataset([folder(roots[0]), Subset(folder(roots[3]), [4, 0, 2])]), field="train")
    assert why_not_in_threads(source) is None
    assert why_not_cached(source) is None
    found = read(from_cache(source, tmp_path).dataset)
    assert same(found, read(source.dataset))
    assert not same(found[: len(found) // 2], found[len(found) // 2 :]), "the crops are frozen"


@pytest.mark.trap(41)
def test_a_cache_is_built_anew_when_one_of_them_changes(tmp_path):
    roots = [write(tmp_path / name, {"cat/0.jpg": jpeg(30, 30, seed=number)}) for number, name in enumerate("ab")]

    def pixels(cache: Any = tmp_path / "cache") -> Any:
        source = source_of(ConcatDataset([folder(root, STILL) for root in roots]), field="train")
        joined = from_cache(source, cache).dataset
        return [joined[index] for index in range(2)]

    before = pixels()
    write(roots[1], {"cat/0.jpg": jpeg(30, 30, seed=9)})
    os.utime(roots[1] / "cat/0.jpg", (1, 1))
    assert same(before[0], pixels()[0])
    assert not same(before[1], pixels()[1])
    roots.reverse()
    assert same(pixels()[1], before[0])


@pytest.mark.parametrize(
    "other",
    [{"view": hasten.RandomResizedCrop(17)}, {"view": STILL}, {"mean": (0.4, 0.4, 0.4)}, {"deviation": (1, 1, 1)}],
    ids=str,
)
def test_folders_that_are_shown_in_different_ways_stay_apart_and_what_helps_is_said(roots, other):
    data = ConcatDataset([folder(roots[0]), folder(roots[1], **other)])
    for given in (data, Subset(data, [0])):
        source = source_of(given, field="train")
        assert source.dataset is given
        assert "if all have the same view, mean and deviation" in (why_not_cached(source) or "")


def test_what_is_read_from_a_cache_already_is_not_joined_with_files(roots, tmp_path):
    cached = from_cache(source_of(folder(roots[0]), field="train"), tmp_path / "cache").dataset
    data = ConcatDataset([cached, folder(roots[1])])
    assert source_of(data, field="train").dataset is data


def test_a_folder_beside_other_data_stays_as_it_is(roots):
    data = ConcatDataset([Subset(folder(roots[0]), [1]), [(torch.zeros(3, 16, 16), 0)]])
    source = source_of(data, field="train")
    assert source.dataset is data
    assert "hasten.ImageFolders in a ConcatDataset" in (why_not_cached(source) or "")


def test_a_picture_that_is_not_there_is_no_other_one(roots):
    joined = source_of(ConcatDataset([folder(roots[0]), folder(roots[1])]), field="train").dataset
    for index in (12, -13):
        with pytest.raises(IndexError, match=f"picture {index} of 12"):
            joined.steady.labelled(index)
    assert np.array_equal(joined.steady[11][2][0], joined.steady[-1][2][0])
