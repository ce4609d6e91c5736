import random
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from hasten.data.loading.batch_loader import TrainLoader
from hasten.data.loading.batch_readers import Request, StreamReader, Window, reader_of
from hasten.data.loading.loader_options import LoaderOptions
from hasten.data.sources.job_data import source_of
from support.data.loaders import (
    HERE,
    ONE_WORKER,
    STAYING,
    Drawing,
    DrawingStream,
    DrawingTogether,
    columns,
    content,
    drawn,
    epoch_of,
    flat,
    loader_of,
    noisy,
)

# Workers are forked while torch's own threads exist; they use none of them. Python says so from 3.12 on.
pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")


@pytest.mark.trap(39)
@pytest.mark.parametrize(
    "data", [Drawing(12), DrawingTogether(12), DrawingStream(12)], ids=lambda data: type(data).__name__
)
def test_every_sample_draws_numbers_of_its_own_in_every_epoch(data):
    loader = loader_of(data, batch_size=3)
    every = [row for number in range(3) for one in loader.epoch(number) for row in flat(one.batch[1])]
    for draws in zip(*every, strict=True):
        assert len(set(draws)) == 36


@pytest.mark.trap(39)
def test_ranks_draw_different_numbers():
    ranks = [epoch_of(Drawing(8), batch_size=8, rank=rank, world_size=2) for rank in range(2)]
    rows = [tuple(row) for rank in ranks for one in rank for row in flat(one.batch[1])]
    assert len(set(rows)) == 8


@pytest.mark.trap(40)
@pytest.mark.trap(39)
@pytest.mark.parametrize("collate", [None, noisy], ids=["default", "drawing"])
@pytest.mark.parametrize("kind", [Drawing, DrawingTogether])
def test_workers_change_no_bit_of_any_batch(kind, collate):
    arguments = {"collate": collate, "microbatch_size": 3}
    here = [content(epoch_of(kind(13), number, **arguments)) for number in range(2)]
    assert [content(epoch_of(kind(13), number, options=ONE_WORKER, **arguments)) for number in range(2)] == here
    staying = loader_of(kind(13), options=STAYING, **arguments)
    assert [content(staying.epoch(number)) for number in range(2)] == here
    staying.close()


class Steady:
    steady_reason = "counted"

    def __len__(self):
        return 9

    def __getitem__(self, index):
        return index, torch.full((6,), float(index))


class SteadyTogether(Steady):
    def __getitems__(self, indices):
        return [self[index] for index in indices]


class Undeclared(Steady):
    steady_reason = None


class DrawingFirst(Steady):
    steady_reason = None

    def __getitem__(self, index):
        drawn()
        return super().__getitem__(index)


@pytest.mark.trap(40)
@pytest.mark.parametrize("other", [SteadyTogether, Undeclared, DrawingFirst])
def test_what_collating_draws_does_not_depend_on_how_its_samples_were_read(other):
    """As a cache is read one sample at a time where its data set was read as batches."""
    wanted = content(epoch_of(Steady(), collate=noisy))
    assert content(epoch_of(other(), collate=noisy)) == wanted
    assert len({tuple(rows[-1]) for (_, rows), *_ in wanted}) == 3


class Counting(IterableDataset[Any]):
    def __iter__(self):
        return iter([Steady()[index] for index in range(9)])


@pytest.mark.trap(39)
@pytest.mark.parametrize("kind", [Steady, SteadyTogether])
def test_what_collating_draws_follows_from_the_seed_the_epoch_and_every_index(kind):
    """Where a sampler draws with replacement, batches of an epoch may begin with the same sample."""
    source = source_of(kind(), field="train", collate=noisy)

    def collated(seed, epoch, *indices):
        return tuple(reader_of(source, seed).__getitems__(Request(epoch, np.array(indices)))[1][-1].tolist())

    asked = [(7, 0, 1, 2), (8, 0, 1, 2), (7, 1, 1, 2), (7, 0, 1, 3), (7, 0, 3, 2), (7, 0, 2, 1), (7, 0, 1)]
    assert len({collated(*each) for each in asked}) == len(asked)
    assert [collated(*each) for each in asked] == [collated(*each) for each in asked]


@pytest.mark.trap(39)
def test_what_collating_draws_in_a_stream_follows_from_the_seed_the_epoch_and_the_position():
    source = source_of(Counting(), field="train", collate=noisy)

    def collated(seed, epoch, number):
        reader = StreamReader(source, seed, batch_size=4, microbatch_size=2, drop_last=False)
        return [tuple(draws[-1].tolist()) for _, (_, draws) in reader.__getitems__(Window(epoch, number))]

    asked = [(7, 0, 0), (7, 0, 1), (7, 1, 0), (8, 0, 0)]
    assert len({draws for each in asked for draws in collated(*each)}) == 2 * len(asked)


@pytest.mark.trap(40)
@settings(max_examples=5)
@given(
    count=st.integers(1, 30),
    batch_size=st.integers(1, 9),
    workers=st.integers(1, 2),
    prefetch_factor=st.integers(1, 4),
    shuffle=st.booleans(),
)
def test_neither_workers_nor_prefetching_change_what_is_read(count, batch_size, workers, prefetch_factor, shuffle):
    options = LoaderOptions(workers=workers, prefetch_factor=prefetch_factor)
    arguments = {"batch_size": batch_size, "shuffle": shuffle}
    expected = content(epoch_of(Drawing(count), **arguments))
    assert content(epoch_of(Drawing(count), options=options, **arguments)) == expected


@given(microbatch_size=st.integers(1, 6), world_size=st.integers(1, 4))
def test_a_sample_draws_the_same_numbers_in_whatever_microbatch_and_on_whatever_rank(microbatch_size, world_size):
    def numbers(**arguments):
        return [
            (index, row)
            for rank in range(arguments.get("world_size", 1))
            for one in epoch_of(Drawing(10), batch_size=10, rank=rank, **arguments)
            for index, row in list(zip(*flat(one.batch), strict=True))[: one.samples]
        ]

    assert numbers(microbatch_size=microbatch_size, world_size=world_size) == numbers()


@pytest.mark.parametrize("data", [Drawing(6), DrawingTogether(6), DrawingStream(6), columns(6)])
@pytest.mark.parametrize("options", [HERE, ONE_WORKER], ids=["here", "worker"])
def test_loading_leaves_the_training_processs_generators_as_they_are(data, options):
    torch.manual_seed(1), np.random.seed(1), random.seed(1)
    expected = [drawn() for _ in range(3)]
    torch.manual_seed(1), np.random.seed(1), random.seed(1)
    loader = loader_of(data, options=options, batch_size=3)
    found = [drawn() for _ in loader.epoch(0)] + [drawn()]
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


def test_workers_compute_with_one_thread_and_run_the_users_own_start():
    started = []

    def start(worker: int) -> None:
        started.append(worker)

    class Threads(Drawing):
        def __getitem__(self, index: int) -> Any:
            return torch.get_num_threads(), len(started), get_worker_info() is not None

    given_loader = DataLoader(Threads(2), batch_size=2, num_workers=1, worker_init_fn=start)
    source = source_of(given_loader, field="train")
    assert source.options is not None
    (one,) = TrainLoader(source, batch_size=None, options=source.options, seed=0).epoch(0)
    assert flat(one.batch) == [[1, 1], [1, 1], [True, True]]
