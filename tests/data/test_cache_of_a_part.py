"""A job that reads a part of a data set: what cannot be read elsewhere in the cache is no matter of this job's."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import Subset

import hasten
from data.pictures import jpeg, write
from hasten.data.cache.cached_source import Watcher, kept
from hasten.data.cache.packing import AHEAD, MOST_READERS, TOGETHER
from hasten.data.cache.repeated_reading import SPREAD
from hasten.data.loading.batch_loader import TrainLoader
from hasten.data.loading.loader_options import LoaderOptions
from hasten.data.sources.augmented import Augmented, steady_rows
from hasten.data.sources.job_data import source_of
from hasten.errors import DataFailed
from support import laptop
from support.data.cached_samples import jittered
from support.data.loaders import content

COUNT = 3000
MOST_READ_AHEAD = MOST_READERS * (AHEAD + 2) * TOGETHER


class Damaged:
    """Samples of some numbers cannot be read, and every reading is counted."""

    steady_reason = "a sample follows from its index"

    def __init__(self, bad: Any, count: int = COUNT) -> None:
        self.bad, self.count, self.readings = bad, count, 0

    def __len__(self) -> int:
        return self.count

    def cache_key(self) -> str:
        return "the only one in its folder"

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        self.readings += 1
        if index in self.bad:
            raise OSError(f"cannot read file {index}")
        return torch.full((2,), index), index


class Part:
    """A data set of the user's with a seam of its own."""

    def __init__(self, steady: Any, rows: Any) -> None:
        self.steady, self.steady_rows = steady, rows

    def with_steady(self, replacement: Any) -> Any:
        return Part(replacement, self.steady_rows)

    def __len__(self) -> int:
        return len(self.steady_rows)

    def __getitem__(self, index: int) -> Any:
        return self.steady[self.steady_rows[index]]


def augmented_part(data: Damaged, rows: list[int]) -> Any:
    return Subset(Augmented(data, jittered), rows)


def nested_part(data: Damaged, rows: list[int]) -> Any:
    return Subset(Subset(data, [*reversed(rows)]), [*reversed(range(len(rows)))])


PARTS = {"Subset": Subset, "Subset of a Subset": nested_part, "Subset of Augmented": augmented_part, "own": Part}


def read(data: Any, cache: Path | bool, said: list[str], replace_bad: bool = True) -> tuple[Any, list[str]]:
    """Every batch of an epoch, and what was told of samples that were replaced."""
    options = LoaderOptions(cache=cache)
    watcher = Watcher(said.append, lambda done, count: None)
    source = kept(source_of(data, field="train"), options, torch.device("cpu"), laptop(), watcher, replace_bad)
    loader = TrainLoader(source, batch_size=100, options=options, seed=7, replace_bad=replace_bad)
    found = content(loader.epoch(0))
    told = loader.replaced()
    loader.close()
    return found, told


@pytest.mark.trap(40)
@pytest.mark.parametrize("replace_bad", [True, False])
@pytest.mark.parametrize("kind", PARTS)
def test_bad_samples_that_the_job_does_not_read_are_kept_as_bad_and_end_nothing(tmp_path, kind, replace_bad):
    rows, said = list(range(2100, 1000, -1)), list[str]()
    data = PARTS[kind](Damaged(range(1000)), rows)
    wanted = read(data, False, said, replace_bad)
    assert read(data, tmp_path, said, replace_bad) == wanted
    assert wanted[1] == []
    assert "1000 of 3000 samples could not be read when the cache was built" in said[-1]


@pytest.mark.parametrize("kind", PARTS)
def test_one_that_it_does_read_ends_the_build_by_default(tmp_path, kind):
    data = PARTS[kind](Damaged({7, 2000}), [*range(1000, 3000)])
    with pytest.raises(DataFailed, match="sample 2000 could not be read"):
        read(data, tmp_path, [], replace_bad=False)
    assert all(name.endswith(".lock") for name in os.listdir(tmp_path))


@pytest.mark.parametrize("kind", PARTS)
def test_too_many_are_too_many_of_those_that_it_reads_and_are_told_by_its_own_numbers(tmp_path, kind):
    whole = Damaged({5, 1000, 1001, 1500, 1501, 2999})
    data = PARTS[kind](whole, [*range(1000, 2500)])
    with pytest.raises(DataFailed, match="2 of 1500 samples could not be read") as caught:
        read(data, tmp_path, [])
    assert "the last was sample 1: OSError: cannot read file 1001" in caught.value.what
    assert whole.readings < 1001 + 2 * SPREAD + MOST_READ_AHEAD, "it went on after it was known"


@pytest.mark.trap(40)
@pytest.mark.parametrize("replace_bad", [True, False])
@pytest.mark.parametrize("own", [True, False])
def test_a_part_of_a_folder_of_pictures_is_a_part_of_its_cache(tmp_path, replace_bad, own):
    files = {f"c/{number:04}.jpg": jpeg(12, 9, number % 9) if number > 3 else b"" for number in range(1010)}
    folder, rows = hasten.ImageFolder(write(tmp_path / "p", files), hasten.RandomResizedCrop(8)), [*range(1009, 3, -1)]
    data = folder.subset(rows) if own else Subset(folder, rows)
    wanted = read(data, False, [], replace_bad)
    said = list[str]()
    assert read(data, tmp_path / "c", said, replace_bad) == wanted
    assert "4 of 1010 samples could not be read when the cache was built" in said[-1]
    with pytest.raises(DataFailed, match=r"2 of 1006 samples could not be read|c/0002.jpg: is empty"):
        read(Subset(folder, [*range(2, 1008)]), tmp_path / "d", [], replace_bad)


@pytest.mark.proof
@settings(max_examples=15)
@given(
    bad=st.frozensets(st.integers(0, COUNT - 1), max_size=6),
    count=st.integers(900, 3200),
    seed=st.integers(0, 2**31),
    kind=st.sampled_from(sorted(PARTS)),
)
def test_a_build_ends_where_the_run_would_and_nowhere_else(tmp_path_factory, bad, count, seed, kind):
    rows = np.random.default_rng(seed).integers(0, COUNT, count).tolist()  # some of them twice

    def outcome(cache: Path | bool) -> Any:
        try:
            return read(PARTS[kind](Damaged(bad), rows), cache, [])
        except DataFailed as error:
            return error.where, error.fix

    assert outcome(tmp_path_factory.mktemp("cache")) == outcome(False)


@pytest.mark.parametrize(("bad", "rows"), [(range(60_000), None), (range(40_000, 60_000), range(40_000, 60_000))])
def test_that_none_can_be_read_is_found_before_the_cache_is_built(tmp_path, bad, rows):
    whole = Damaged(bad, 60_000)
    with pytest.raises(
        DataFailed, match=f"none of {SPREAD} samples, spread over those that are wanted, could"
    ) as caught:
        read(whole if rows is None else Subset(whole, rows), tmp_path, [])
    assert "the last was sample 59999: OSError: cannot read file 59999" in caught.value.what
    assert whole.readings == SPREAD
    assert all(name.endswith(".lock") for name in os.listdir(tmp_path))


def test_which_rows_a_data_set_has_follows_through_every_part():
    whole = Damaged(())
    assert steady_rows(whole) is None
    assert steady_rows(Augmented(whole, jittered)) is None
    assert steady_rows(Subset(Subset(whole, [7, 8, 9]), [2, 0])).tolist() == [9, 7]
    assert steady_rows(Subset(Part(whole, [7, 8, 9]), [1])).tolist() == [8]
    assert steady_rows(Subset(whole, [-1, 0])).tolist() == [len(whole) - 1, 0]
    with pytest.raises(DataFailed, match=r"steady_rows gives True .* at position 0"):
        steady_rows(Part(whole, [True, False, True]))
