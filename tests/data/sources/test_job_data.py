from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    StackDataset,
    Subset,
    TensorDataset,
    WeightedRandomSampler,
)

from hasten.data.loading.loader_options import LoaderOptions
from hasten.data.sources.column_gather import Gather
from hasten.data.sources.job_data import reads_batches, source_of
from hasten.errors import DataFailed, JobError, UserCodeFailed

ROWS = torch.arange(12.0).reshape(6, 2)
LABELS = torch.arange(6)


class Pair(NamedTuple):
    rows: torch.Tensor
    labels: torch.Tensor


class Squares(Dataset):
    def __len__(self):
        return 5

    def __getitem__(self, index):
        return index * index


class Unsized(Dataset):
    def __getitem__(self, index):
        return index


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(5))


class Batched(Squares):
    def __getitems__(self, indices):
        return [self[index] for index in indices]


def collate(samples):
    return samples


@pytest.mark.parametrize(
    ("given", "form"),
    [
        ((ROWS, LABELS), tuple),
        ({"x": ROWS, "y": LABELS}, dict),
        (Pair(ROWS, LABELS), Pair),
        (ROWS, torch.Tensor),
        (TensorDataset(ROWS, LABELS), list),
    ],
)
def test_a_gathered_batch_has_the_form_of_what_was_given(given, form):
    assert type(Gather(source_of(given, field="train").columns)(np.array([1]))) is form


@pytest.mark.parametrize("indices", [[0, 6], [0.5, 1.5], [True] * 6])
def test_a_part_of_what_is_not_there_is_refused_before_anything_is_read(indices):
    with pytest.raises(DataFailed, match=r"a Subset in Job\.valid gives"):
        source_of(Subset(TensorDataset(ROWS, LABELS), indices), field="valid")


def test_a_subclass_of_tensor_dataset_is_read_sample_by_sample_because_it_may_change_samples():
    class Noisy(TensorDataset):
        def __getitem__(self, index):
            return torch.rand(())

    assert not source_of(Noisy(ROWS), field="train").gathers


@pytest.mark.trap(41)
def test_changing_a_batch_in_place_leaves_the_data_alone_even_when_it_is_read_only():
    array = np.arange(6.0).reshape(3, 2)
    array.setflags(write=False)
    source = source_of((array, ROWS[:3]), field="train")
    for column in Gather(source.columns)(np.arange(3)):
        column.zero_()
    assert array.sum() == 15
    assert ROWS.sum() == 66


def test_only_a_getitems_that_is_more_than_torchs_loop_reads_batches():
    assert reads_batches(Batched())
    assert reads_batches(Subset(Batched(), [0]))
    assert reads_batches(StackDataset(Batched(), Squares()))
    assert not reads_batches(Subset(Squares(), [0]))
    assert not reads_batches(StackDataset(a=Squares(), b=Squares()))


def test_a_loader_hands_over_what_it_has_settled():
    loader = DataLoader(
        Squares(),
        batch_size=2,
        shuffle=True,
        drop_last=True,
        collate_fn=collate,
        num_workers=1,
        prefetch_factor=3,
        persistent_workers=True,
        pin_memory=True,
        worker_init_fn=print,
    )
    source = source_of(loader, field="train")
    assert (source.batch_size, source.shuffle, source.drop_last, source.collate) == (2, True, True, collate)
    assert source.options == LoaderOptions(workers=1, prefetch_factor=3, persistent_workers=True, pin_memory=True)
    assert source.worker_init is print
    assert source.sampler is None
    assert source.notices == ()


@pytest.mark.parametrize(
    ("sampler", "shuffle", "own"),
    [
        (SequentialSampler(Squares()), False, False),
        (RandomSampler(Squares()), True, False),
        (RandomSampler(Squares(), replacement=True), None, True),
        (RandomSampler(Squares(), num_samples=3), None, True),
        (WeightedRandomSampler([1, 2, 3, 4, 5], 7), None, True),
    ],
)
def test_a_sampler_decides_the_order_unless_ours_means_the_same(sampler, shuffle, own):
    source = source_of(DataLoader(Squares(), batch_size=2, sampler=sampler), field="train")
    assert source.shuffle is shuffle
    assert (source.sampler is sampler) == own
    assert source.count == len(sampler)


class Twos(BatchSampler):
    """A batch sampler of the user's own."""


def raises():
    raise OSError("no such disk")


MISTAKES = {
    "lengths": ((ROWS, LABELS[:4]), "[0] has 6, [1] has 4"),
    "no tensor": ((ROWS, [1, 2, 3, 4, 5, 6]), "train[1] is [1, 2, 3, 4, 5, 6] (list)"),
    "empty": (TensorDataset(ROWS[:0]), "has 0 samples"),
    "number": (3, "is 3 (int), which is not a data set"),
    "unsized": (Unsized(), "has __getitem__ but no length"),
    "generator": ((index for index in range(3)), "can be read only once"),
    "returns nothing": (lambda: None, "returned None"),
    "no batch size": (DataLoader(Squares(), batch_size=None), "batch_size=None"),
    "distributed": (
        DataLoader(Squares(), batch_size=2, sampler=DistributedSampler(Squares(), num_replicas=2, rank=0)),
        "DistributedSampler",
    ),
    "unsized sampler": (
        DataLoader(Squares(), batch_size=2, sampler=iter([0, 1])),
        "a sampler without a length, ",
    ),
    "distributed batches": (
        DataLoader(Squares(), batch_sampler=Twos(DistributedSampler(Squares(), num_replicas=2, rank=0), 2, False)),
        "DistributedSampler",
    ),
}


def test_a_batch_size_beside_a_batch_sampler_is_refused():
    loader = DataLoader(Squares(), batch_sampler=[[0, 1], [2]])
    with pytest.raises(JobError, match="batch_size: is 2, and the DataLoader in train has its own batch_sampler"):
        source_of(loader, field="train", batch_size=2)


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_wrong_input_is_named_and_what_to_write_is_said(mistake):
    given, words = MISTAKES[mistake]
    with pytest.raises(JobError) as caught:
        source_of(given, field="train")
    assert caught.value.field == "train"
    assert words in caught.value.what
    assert caught.value.fix


def test_a_function_that_raises_is_the_users_code_and_names_its_line():
    with pytest.raises(UserCodeFailed, match="no such disk") as caught:
        source_of(raises, field="valid")
    assert isinstance(caught.value.__cause__, OSError)
    assert "in raises" in caught.value.where
