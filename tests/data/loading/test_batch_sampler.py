"""A DataLoader with a batch sampler of the user's own: its lists are the batches, in its order."""

from __future__ import annotations

import pickle
from collections import Counter
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import BatchSampler, DataLoader, TensorDataset

from hasten.data.loading.batch_loader import EvaluationLoader
from hasten.data.loading.batch_readers import reader_of
from hasten.data.order.randomness import derived, reseed
from hasten.data.order.sample_order import ORDER
from hasten.data.sources.job_data import source_of
from hasten.errors import DataFailed, JobError
from support.data.loaders import HERE, TWO_WORKERS, Buckets, Drawing, content, epoch_of, indices, loader_of, steps

COUNT = 22


def rows(**options: Any) -> DataLoader[Any]:
    return DataLoader(TensorDataset(torch.arange(COUNT)), **({"batch_sampler": Buckets()} | options))


def drawing() -> DataLoader[Any]:
    return DataLoader(Drawing(COUNT), batch_sampler=Buckets())


def in_a_plain_loop(seed: int, epoch: int) -> list[list[int]]:
    loader = rows(generator=torch.Generator())  # from which a DataLoader takes the seed of its workers
    reseed(derived(seed, ORDER, epoch))
    return [batch.tolist() for (batch,) in loader]


@pytest.mark.parametrize("epoch", [0, 3])
def test_the_batches_are_those_of_a_plain_loop_over_the_loader(epoch):
    assert steps(epoch_of(rows(), epoch)) == in_a_plain_loop(7, epoch)
    assert steps(epoch_of(rows(), epoch, start_step=4)) == in_a_plain_loop(7, epoch)[4:]


@given(microbatch_size=st.none() | st.integers(1, 4), world_size=st.integers(1, 5))
def test_batches_do_not_depend_on_the_ranks_or_the_microbatches(microbatch_size, world_size):
    cut = {"microbatch_size": microbatch_size, "world_size": world_size}
    ranks = [epoch_of(rows(), 1, rank=rank, **cut) for rank in range(world_size)]
    together = [[index for share in shares for index in share] for shares in zip(*map(steps, ranks), strict=True)]
    assert together == in_a_plain_loop(7, 1)
    assert len({len(rank) for rank in ranks}) == 1
    assert all(len(one.batch[0]) <= (microbatch_size or COUNT) for rank in ranks for one in rank)


def test_workers_read_the_same_batches_with_the_same_random_numbers():
    here = content(epoch_of(drawing(), 2, microbatch_size=2))
    assert content(epoch_of(drawing(), 2, microbatch_size=2, options=TWO_WORKERS)) == here


def test_a_loader_says_its_steps_its_first_share_and_which_samples_a_batch_has():
    loader = loader_of(rows(), rank=1, world_size=2, batch_size=6)
    assert loader.steps_per_epoch == len(Buckets.SIZES)
    assert loader.leaves_single
    first, *_, last = in_a_plain_loop(7, 0)
    assert loader.first_share == len(first) - len(first) // 2
    words = loader.samples_in_words(0, len(Buckets.SIZES) - 1)
    assert all(str(index) in words for index in last)


class Growing(Buckets):
    """One batch more in every epoch."""

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Any:
        yield from super().__iter__()
        yield from [[0]] * self.epoch


def test_an_epoch_with_another_number_of_batches_is_refused_where_the_run_is_planned_by_epochs():
    growing = rows(batch_sampler=Growing())
    with pytest.raises(DataFailed, match="draws 8 batches in epoch 3, and 6 in epoch 1") as caught:
        epoch_of(growing, 2)
    assert "Job.max_steps" in caught.value.fix
    assert len(steps(epoch_of(growing, 2, equal_epochs=False))) == 8


def test_drop_last_is_refused():
    with pytest.raises(JobError, match="drop_last: is True, and the DataLoader in train has its own batch_sampler"):
        loader_of(rows(), drop_last=True)


@pytest.mark.parametrize("world_size", [1, 3])
@pytest.mark.parametrize("batch_size", [2, 6])
def test_an_evaluation_reads_the_same_batches_each_time_divided_over_ranks(world_size, batch_size):
    source = source_of(rows(), field="valid")
    options = {"batch_size": batch_size, "options": HERE, "seed": 7, "world_size": world_size}
    loaders = [EvaluationLoader(source, rank=rank, **options) for rank in range(world_size)]
    ranks = [[*loader] for loader in loaders]
    assert Counter(index for rank in ranks for index in indices(rank)) == Counter(range(COUNT))
    assert [[one.last for one in rank] for rank in ranks] == [[False] * (len(ranks[0]) - 1) + [True]] * world_size
    assert content(loaders[0]) == content(ranks[0])
    if world_size == 1 and batch_size == 6:
        assert [one.batch[0].tolist() for one in ranks[0]] == in_a_plain_loop(7, 0)


def test_torchs_own_batch_sampler_is_taken_as_its_sampler_and_size():
    given = BatchSampler(torch.utils.data.RandomSampler(range(COUNT)), 5, drop_last=True)
    source = source_of(rows(batch_sampler=given), field="train")
    assert (source.batch_size, source.drop_last, source.shuffle, source.batches) == (5, True, True, None)


class Unsendable(Buckets):
    def __init__(self) -> None:
        self.key = lambda index: index


def test_what_workers_get_holds_no_batch_sampler():
    source = source_of(DataLoader(Drawing(COUNT), batch_sampler=Unsendable()), field="train")
    assert pickle.dumps(reader_of(source, 7))
