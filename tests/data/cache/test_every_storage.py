"""Wherever samples come from (files, a cache on disk, memory) and whoever reads them, batches are the same bit for bit.

As in test_every_loader_setting.py, the whole product is run by `make proof` and a sample of it with the other tests.
"""

from __future__ import annotations

import itertools
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import hasten
from hasten.data.cache.cached_source import Watcher, stored
from hasten.data.loading.batch_loader import TrainLoader
from hasten.data.loading.loader_options import LoaderOptions
from hasten.data.sources.job_data import source_of
from support import laptop
from support.data.image_cases import photos
from support.data.loaders import content, drawn

pytestmark = [
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
    pytest.mark.trap(38),
    pytest.mark.trap(40),
    pytest.mark.trap(41),
]

SAMPLES, EPOCHS, BATCH = 13, 2, 4
RANKS = (1, 2, 3)
UNWATCHED = Watcher(lambda text: None, lambda done, count: None)


class Steady:
    """The same every time, of tensors, arrays and numbers."""

    steady_reason = "a sample follows from its index"

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Any:
        return index, torch.full((2, 3), index, dtype=torch.float64) / 7, np.arange(4) * index


def shaken(sample: Any) -> Any:
    """Drawn from all three generators, and written into what was read."""
    index, values, numbers = sample
    values += drawn().view(2, 3)
    numbers += int(np.random.randint(9))
    return index, values, numbers


def two_parts(folder: Path) -> Any:
    return hasten.Augmented(Steady(), shaken)


def pictures(folder: Path) -> Any:
    if not folder.exists():
        photos(folder, count=SAMPLES)
    return hasten.ImageFolder(folder, hasten.RandomResizedCrop(8))


KINDS = {"steady": lambda folder: Steady(), "in two parts": two_parts, "pictures": pictures}


def _readers() -> list[dict[str, Any]]:
    kinds = itertools.product(("processes", "threads"), (1, 2, 4), (None, 1, 3), (False, True))
    return [
        {},
        *(
            {"worker_kind": kind, "workers": workers, "prefetch_factor": prefetch, "persistent_workers": persistent}
            for kind, workers, prefetch, persistent in kinds
        ),
    ]


EVERY = list(itertools.product(_readers(), (False, True), (None, "host"), (False, True)))


def read(kind: str, folder: Path, options: LoaderOptions, rank: int, ranks: int) -> list[object]:
    """All epochs as plain numbers; the second is left in its middle and gone on with, as a resumed run does."""
    source = source_of(KINDS[kind](folder / kind), field="train")
    source = stored(source, options, torch.device("cpu"), laptop(), UNWATCHED)
    loader = TrainLoader(source, batch_size=BATCH, options=options, seed=7, rank=rank, world_size=ranks)
    found = [content(loader.epoch(number)) for number in range(EPOCHS)]
    found.append(content(loader.epoch(1, 2)))
    loader.close()
    return found


@cache
def plain(kind: str, folder: Path, rank: int, ranks: int) -> list[object]:
    return read(kind, folder, LoaderOptions(), rank, ranks)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kept")


def options_of(chosen: Any, kind: str, folder: Path) -> LoaderOptions:
    reader, cached, in_memory, pin = chosen
    return LoaderOptions(
        **reader, cache=folder / f"cache of {kind}" if cached else False, in_memory=in_memory, pin_memory=pin
    )


@settings(max_examples=20)
@given(
    kind=st.sampled_from(sorted(KINDS)),
    chosen=st.sampled_from(EVERY),
    world=st.sampled_from([(rank, ranks) for ranks in RANKS for rank in range(ranks)]),
)
def test_no_way_of_keeping_or_reading_changes_a_bit(kind, chosen, world, folder):
    assert read(kind, folder, options_of(chosen, kind, folder), *world) == plain(kind, folder, *world)
