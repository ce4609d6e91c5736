"""A cache is built once, whole or not at all, of nothing but what is always the same."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hasten.data.cache.cache_building import open_cache
from hasten.data.cache.cache_file import DATA, INDEX, MANIFEST
from hasten.data.cache.repeated_reading import SPREAD, Unreadable
from hasten.errors import DataFailed, StorageFailed, UserCodeFailed
from support.checkpoint.file_faults import file_size_limit
from support.data.cached_samples import Counted, Grey, Listed, same, samples_of

RAGGED = [(torch.arange(number + 1.0), "n" * number) for number in range(40)]


def only_cache(folder: Path) -> Path:
    (found,) = (path for path in folder.iterdir() if not path.name.startswith("."))
    return found


def test_a_cache_that_is_there_is_read_and_not_built_again(tmp_path):
    data = Counted(tmp_path / "log")
    first = samples_of(open_cache(data, tmp_path / "c"))
    readings = data.readings()
    assert readings == data.count + 2 * SPREAD
    assert same(samples_of(open_cache(data, tmp_path / "c")), first)
    assert data.readings() == readings


def test_the_estimate_and_the_progress_are_told(tmp_path):
    said, progress = list[str](), list[tuple[int, int]]()
    open_cache(Grey(40), tmp_path, progress=lambda done, count: progress.append((done, count)), say=said.append)
    assert said == [f"building a cache of 40 samples of Grey in {only_cache(tmp_path)}: about 5.00 KiB and 0 s"]
    assert progress == [(done, 40) for done in range(1, 41)]


class Drawing(Grey):
    """Draws from one generator, for one of its samples."""

    def __init__(self, draw: str, at: int) -> None:
        super().__init__(40)
        self.draw, self.at = draw, at

    def __getitem__(self, index: int) -> Any:
        if index == self.at:
            DRAWS[self.draw]()
        return super().__getitem__(index)


DRAWS = {
    "torch": lambda: torch.rand(3),
    "NumPy": lambda: np.random.rand(),
    "NumPy, permuted": lambda: np.random.permutation(3),
    "Python": lambda: random.random(),
    "Python, chosen": lambda: random.choice([1, 2]),
    "torch, seeded": lambda: torch.manual_seed(0),
    "Python, seeded": lambda: random.seed(0),
}


@pytest.mark.trap(41)
@pytest.mark.parametrize("draw", DRAWS)
@pytest.mark.parametrize("at", [0, 7])
def test_a_sample_that_draws_is_refused_by_its_number(tmp_path, draw, at):
    name = draw.partition(",")[0]
    with pytest.raises(DataFailed, match=rf"sample {at} draws from {name}'s global generator") as caught:
        open_cache(Drawing(draw, at), tmp_path)
    assert "hasten.Augmented(dataset, transform)" in caught.value.fix
    assert not [path for path in tmp_path.iterdir() if path.suffix != ".lock"]


class OwnGenerator(Grey):
    """Draws from a generator that nobody else knows of."""

    generator = random.Random(1)

    def __getitem__(self, index: int) -> Any:
        return super().__getitem__(index)[0], self.generator.random()

    def cache_key(self) -> str:
        return "own"


class Forking(Grey):
    """Draws, and puts the generator back as it was."""

    def __getitem__(self, index: int) -> Any:
        with torch.random.fork_rng(devices=[]):
            return torch.rand(2)


@pytest.mark.trap(41)
@pytest.mark.parametrize("dataset", [OwnGenerator, Forking])
def test_a_sample_that_is_not_the_same_twice_is_refused(tmp_path, dataset):
    with pytest.raises(DataFailed, match="sample 0 differs when it is read twice"):
        open_cache(dataset(), tmp_path)


class Broken(Grey):
    def __init__(self, error: Exception) -> None:
        super().__init__(40)
        self.error = repr(error)

    def __getitem__(self, index: int) -> Any:
        if index == 7:
            raise eval(self.error)
        return super().__getitem__(index)


@pytest.mark.parametrize(("error", "kind"), [(OSError("gone"), DataFailed), (KeyError("gone"), UserCodeFailed)])
def test_a_sample_that_cannot_be_read_is_named_with_the_user_s_line(tmp_path, error, kind):
    with pytest.raises(Unreadable) as caught:
        open_cache(Broken(error), tmp_path)
    told = caught.value.error()
    assert isinstance(told, kind)
    assert "sample 7 could not be read: " in told.what
    assert "test_cache_building.py" in told.where
    assert type(told.__cause__) is type(error)
    assert not [path for path in tmp_path.iterdir() if path.suffix != ".lock"]


class Endless(Grey):
    def __getitem__(self, index: int) -> Any:
        return torch.zeros(1 << 20, dtype=torch.uint8)


def test_a_cache_that_does_not_fit_is_refused_with_the_numbers_before_it_is_begun(tmp_path):
    with pytest.raises(StorageFailed, match=r"would take about .* PiB, and .* are free"):
        open_cache(Endless(10**12), tmp_path)
    assert all(name.endswith(".lock") for name in os.listdir(tmp_path))


def test_a_disk_that_refuses_leaves_nothing_behind_and_the_next_start_builds(tmp_path):
    with file_size_limit(1000), pytest.raises(StorageFailed) as caught:
        open_cache(Grey(40), tmp_path)
    assert "could not be written" in caught.value.what
    assert all(name.endswith(".lock") for name in os.listdir(tmp_path))
    assert len(open_cache(Grey(40), tmp_path)) == 40


@pytest.mark.parametrize("mode", [0o707])
def test_a_cache_that_others_can_write_is_refused(tmp_path, mode):
    open_cache(Grey(), tmp_path)
    only_cache(tmp_path).chmod(mode)
    with pytest.raises(StorageFailed, match="other users can write"):
        open_cache(Grey(), tmp_path)


@pytest.mark.parametrize(
    ("name", "harm"), [(DATA, "cut"), (INDEX, "removed"), (DATA, "flipped"), (MANIFEST, "flipped")]
)
def test_a_damaged_cache_is_built_anew_and_the_file_is_named(tmp_path, name, harm):
    said: list[str] = []
    path = open_cache(Listed(RAGGED), tmp_path).folder / name
    data = bytearray(path.read_bytes())
    if harm == "removed":
        path.unlink()
    elif harm == "cut":
        path.write_bytes(data[:-1])
    else:
        data[len(data) // 2] ^= 4
        path.write_bytes(data)
    if name != MANIFEST and harm == "flipped":
        with pytest.raises(StorageFailed, match="run it again"):  # found where it is read, and then at the next start
            samples_of(open_cache(Listed(RAGGED), tmp_path, say=said.append))
    assert same(samples_of(open_cache(Listed(RAGGED), tmp_path, say=said.append)), RAGGED)
    told = (name, MANIFEST)
    assert [text for text in said if "rebuilt" in text and any(words in text for words in told)]
    assert [path for path in tmp_path.iterdir() if path.suffix != ".lock"] == [path.parent]
