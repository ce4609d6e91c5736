"""Fifty million samples: what a training holds for them, and how much work a batch is, at its start and at its end."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any

import numpy as np
import pytest

from hasten.data.loading.batch_loader import EvaluationLoader, TrainLoader
from hasten.data.loading.loader_options import LoaderOptions
from hasten.data.order import sample_order as order
from hasten.data.order.sample_order import CHUNK, Order, walked
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


def test_the_last_batch_of_fifty_million_has_what_is_left():
    (last,) = loader(Indices(), shuffle=True).epoch(0, STEPS)
    assert last.samples == MANY % BATCH


def test_an_evaluation_begins_without_a_list_of_its_batches():
    evaluation = EvaluationLoader(source_of(Indices(), field="valid"), batch_size=8, options=LoaderOptions(), seed=3)
    with held() as most_bytes:
        assert next(iter(evaluation)).batch.tolist() == list(range(8))
        assert most_bytes() < MOST_BYTES


def test_the_same_work_is_done_for_a_batch_wherever_it_stands(monkeypatch):
    """Positions that are computed: one chunk, or two where a batch lies across their border."""
    computed = list[int]()
    monkeypatch.setattr(order, "walked", lambda *given: computed.append(len(given[0])) or walked(*given))
    for step in PLACES:
        computed.clear()
        assert len(list(islice(loader(Indices(), True).epoch(0, step), 4))) == 4
        assert 0 < sum(computed) <= 2 * CHUNK


@pytest.mark.parametrize("count", [MANY, 2**26, 2**26 + 1, 2**25 + 1])
def test_few_positions_are_walked_again_whatever_the_length(count, monkeypatch):
    """Less than one more application for each position on average; the worst length is just above a power of two."""
    applied = list[int]()
    feistel = order._feistel
    monkeypatch.setattr(order, "_feistel", lambda *given: applied.append(len(given[0])) or feistel(*given))
    Order(count, 5, shuffle=True).indices(0, 0, CHUNK)
    assert CHUNK <= sum(applied) < 2.05 * CHUNK
