"""A cache is built by one process at a time, and whole or not at all, whenever that is killed."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest
import torch

from hasten.data.cache.cache_building import open_cache
from hasten.data.cache.cache_file import DATA, INDEX, Cached
from hasten.data.cache.repeated_reading import SPREAD
from support.checkpoint import file_faults
from support.data.cached_samples import Counted, Grey, Listed, same, samples_of

RAGGED = [(torch.arange(number + 1.0), "n" * number) for number in range(40)]


def test_processes_that_start_together_build_it_once(tmp_path):
    data = Counted(tmp_path / "log")

    def read() -> bool:
        return same(samples_of(open_cache(data, tmp_path / "c")), samples_of(Grey(40)))

    assert file_faults.together([read] * 4) == [True] * 4
    assert data.readings() == data.count + 2 * SPREAD


def test_what_a_dead_builder_left_is_removed_and_what_a_live_one_writes_is_not(tmp_path):
    key = open_cache(Grey(), tmp_path).folder.name
    mine, other = tmp_path / f".{key}.12ab.tmp", tmp_path / f".{'0' * 32}.12ab.tmp"
    for left in (mine, other):
        left.mkdir()
        (left / DATA).write_bytes(b"half")
    (tmp_path / key / DATA).write_bytes(b"cut")
    open_cache(Grey(), tmp_path)
    assert (mine.exists(), other.exists()) == (False, True)


@pytest.mark.parametrize("step", [5, pytest.param(1, marks=pytest.mark.proof)])
@pytest.mark.parametrize("before", ["nothing", "a damaged cache"])
def test_killed_inside_any_file_operation_the_next_start_has_a_whole_cache(tmp_path, before, step):
    data = Listed(RAGGED[:5])

    def prepared(folder: Path) -> Path:
        if before != "nothing":
            (open_cache(data, folder).folder / INDEX).write_bytes(b"")
        return folder

    died = 0
    while True:
        folder = prepared(tmp_path / str(died))
        if not file_faults.killed_inside(died + 1, functools.partial(open_cache, data, folder)):
            break
        died += step
        left = [path for path in folder.iterdir() if not path.name.startswith(".")] if folder.exists() else []
        if before == "nothing":
            assert all(same(samples_of(Cached(path)), RAGGED[:5]) for path in left), f"operation {died}"
        cached = open_cache(data, folder)
        assert same(samples_of(cached), RAGGED[:5]), f"operation {died}"
        assert [path for path in folder.iterdir() if path.suffix != ".lock"] == [cached.folder], f"operation {died}"
    assert died > 10
