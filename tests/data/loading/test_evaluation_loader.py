from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, TensorDataset

from hasten.data.loading.batch_loader import EvaluationLoader
from hasten.data.loading.loader_options import LoaderOptions
from hasten.data.sources.job_data import source_of
from hasten.errors import DataFailed
from support.data.loaders import HERE, ONE_WORKER, Drawing, DrawingStream, columns, content, epoch_of, flat, indices


def evaluation_of(data: Any, *, options: LoaderOptions = HERE, **arguments: Any) -> EvaluationLoader:
    return EvaluationLoader(
        source_of(data, field="valid"), **({"batch_size": 4, "options": options, "seed": 7} | arguments)
    )


@pytest.mark.trap(44)
@given(count=st.integers(1, 40), batch_size=st.integers(1, 12), world_size=st.integers(1, 5))
def test_an_evaluation_reads_every_sample_once_in_order_over_any_ranks(count, batch_size, world_size):
    ranks = [
        list(evaluation_of(columns(count), batch_size=batch_size, rank=rank, world_size=world_size))
        for rank in range(world_size)
    ]
    assert [index for rank in ranks for index in indices(rank)] == list(range(count))
    assert all(0 < one.samples == len(one.batch[0]) <= batch_size for rank in ranks for one in rank)
    assert all([one.last for one in rank] == [False] * (len(rank) - 1) + [True] * bool(rank) for rank in ranks)


@pytest.mark.trap(44)
@given(count=st.integers(1, 40), batch_size=st.integers(1, 12))
def test_an_evaluation_of_a_stream_reads_every_sample_once(count, batch_size):
    found = list(evaluation_of(DrawingStream(count), batch_size=batch_size))
    assert sorted(indices(found)) == list(range(count))
    assert [one.last for one in found] == [False] * (len(found) - 1) + [True]


@pytest.mark.trap(44)
def test_an_evaluation_neither_shuffles_nor_drops_what_a_loader_would():
    loader = evaluation_of(DataLoader(TensorDataset(torch.arange(10)), batch_size=4, shuffle=True, drop_last=True))
    assert indices(loader) == list(range(10))
    assert loader.notices == ("valid: drop_last is ignored, an evaluation counts every sample",)


@pytest.mark.parametrize("kind", [Drawing, DrawingStream])
def test_evaluations_are_all_alike_and_draw_other_numbers_than_training(kind):
    loader = evaluation_of(kind(10))
    first = content(loader)
    assert content(loader) == first
    worker = evaluation_of(kind(10), options=ONE_WORKER)
    assert content(worker) == first
    trained = epoch_of(kind(10), 0)
    evaluated = {row[0] for (_, rows), *_ in first for row in rows}
    assert not evaluated & {row[0] for one in trained for row in flat(one.batch[1])}


@pytest.mark.trap(43)
def test_an_evaluation_without_samples_is_an_error():
    with pytest.raises(DataFailed, match="has 0 samples"):
        list(evaluation_of(DrawingStream(0)))
