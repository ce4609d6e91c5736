"""Fifty million samples: what a training holds for them, and how much work a batch is, at its start and at its end."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any

import numpy as np
import pytest

from hasten.data.loading.batch_loader import TrainLoader
from hasten.data.loading.loader_options import LoaderOptions
from hasten.data.order.sample_order import Order
from hasten.data.sources.job_data import source_of

MANY, BATCH = 50_000_000, 256
STEPS = MANY // BATCH
PLACES = [0, STEPS // 2, STEPS - 8]
MOST_BYTES = 8 << 20  # one index entry of 8 bytes for each sample would be fifty times as much


class Indices:
    """A data set of a length and nothing else: a sample is its index."""

    def __len__(self) -> int:
        return MANY

    def __getitem__(self, index: int) -> int:
        return index


def columns() -> np.ndarray:
    """One row, fifty million times in the same place."""
    return np.broadcast_to(np.zeros(1, dtype=np.int8), (MANY,))


def loader(data: Any, shuffle: bool) -> TrainLoader:
    return TrainLoader(
        source_of(data, field="train"), batch_size=BATCH, options=LoaderOptions(), seed=3, shuffle=shuffle
    )


@contextmanager
def held() -> Iterator[Callable[[], int]]:
    """A function that tells the most bytes that were held at any moment since."""
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        yield lambda: tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("step", PLACES)
@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("data", [Indices, columns])
def test_a_training_holds_nothing_for_samples_it_does_not_read(data, shuffle, step):
    given = data()
    with held() as most_bytes:
        found = list(islice(loader(given, shuffle).epoch(1, step), 8))
        assert most_bytes() < MOST_BYTES
    assert [one.samples for one in found] == [BATCH] * 8


@pytest.mark.parametrize("shuffle", [True, False])
def test_a_training_reads_at_any_step_what_its_order_says(shuffle):
    for step in PLACES:
        found = next(loader(Indices(), shuffle).epoch(2, step)).batch
        expected = Order(MANY, 3, shuffle).indices(2, step * BATCH, (step + 1) * BATCH)
        assert found.tolist() == expected.tolist()
