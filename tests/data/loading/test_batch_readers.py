import numpy as np
import pytest
import torch

from hasten.data.loading.batch_readers import Request, reader_of
from hasten.data.sources.job_data import source_of
from support.data.loaders import (
    Drawing,
    DrawingStream,
    DrawingTogether,
    content,
    drawn,
    epoch_of,
    flat,
    loader_of,
    noisy,
)


@pytest.mark.trap(39)
@pytest.mark.parametrize(
    "data", [Drawing(12), DrawingTogether(12), DrawingStream(12)], ids=lambda data: type(data).__name__
)
def test_every_sample_draws_numbers_of_its_own_in_every_epoch(data):
    loader = loader_of(data, batch_size=3)
    every = [row for number in range(3) for one in loader.epoch(number) for row in flat(one.batch[1])]
    for draws in zip(*every, strict=True):
        assert len(set(draws)) == 36


class Steady:
    steady_reason = "counted"

    def __len__(self):
        return 9

    def __getitem__(self, index):
        return index, torch.full((6,), float(index))


class SteadyTogether(Steady):
    def __getitems__(self, indices):
        return [self[index] for index in indices]


class DrawingFirst(Steady):
    steady_reason = None

    def __getitem__(self, index):
        drawn()
        return super().__getitem__(index)


@pytest.mark.trap(40)
@pytest.mark.parametrize("other", [SteadyTogether, DrawingFirst])
def test_what_collating_draws_does_not_depend_on_how_its_samples_were_read(other):
    """As a cache is read one sample at a time where its data set was read as batches."""
    wanted = content(epoch_of(Steady(), collate=noisy))
    assert content(epoch_of(other(), collate=noisy)) == wanted
    assert len({tuple(rows[-1]) for (_, rows), *_ in wanted}) == 3


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
