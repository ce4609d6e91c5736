import random

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, SequentialSampler

from hasten.data.order.sampled_order import SampledBatches, SampledOrder
from hasten.errors import DataFailed, UserCodeFailed


class Halves:
    """A sampler that draws from all three global generators and skips half of the samples."""

    def __init__(self, generator=None):
        self.generator = generator

    def __len__(self):
        return 20

    def __iter__(self):
        yield from torch.randperm(10, generator=self.generator).tolist()
        yield from np.random.permutation(10).tolist()[:5]
        yield from random.sample(range(10), 5)


def test_a_sampler_of_the_users_draws_the_same_in_the_same_epoch_and_disturbs_nothing():
    generator = torch.Generator().manual_seed(3)
    before = generator.get_state(), torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()
    first = SampledOrder(Halves(generator), 20, seed=1)
    second = SampledOrder(Halves(generator), 20, seed=1)
    epoch_four = first.indices(4, 0, 20)
    assert not np.array_equal(first.indices(5, 0, 20), epoch_four)
    assert np.array_equal(second.indices(4, 3, 9), epoch_four[3:9])
    assert not np.array_equal(SampledOrder(Halves(generator), 20, seed=2).indices(4, 0, 20), epoch_four)
    after = generator.get_state(), torch.get_rng_state(), np.random.get_state()[1], random.getstate()
    assert torch.equal(before[0], after[0])
    assert torch.equal(before[1], after[1])
    assert np.array_equal(before[2], after[2])
    assert before[3] == after[3]


def test_a_sampler_whose_length_is_wrong_is_an_error():
    with pytest.raises(DataFailed, match="its length says"):
        SampledOrder(Halves(), 21, seed=1).indices(0, 0, 5)


class Drawing:
    """A sampler that yields what it was given, and says so much of its length."""

    def __init__(self, drawn, length=None):
        self.drawn, self.length = drawn, len(drawn) if length is None else length

    def __len__(self):
        return self.length

    def __iter__(self):
        return iter(self.drawn)


def test_a_sampler_that_raises_is_the_users_code_and_names_its_line():
    def failing():
        yield 0
        raise KeyError("no weights")

    with pytest.raises(UserCodeFailed, match="the sampler raised in epoch 1: KeyError: 'no weights'") as caught:
        SampledOrder(Drawing(failing(), 2), 2, seed=1).indices(0, 0, 2)
    assert "in failing" in caught.value.where
    assert isinstance(caught.value.__cause__, KeyError)


class Own:
    """A batch sampler with a generator of its own, in an order of batches that it keeps."""

    def __init__(self, generator):
        self.rng, self.batches = generator, [[number, number + 1] for number in range(8)]

    def __iter__(self):
        return iter(self.rng.sample(self.batches, 8))


def lists(batches, seed=1, epoch=0):
    found = batches.drawn(seed, epoch)
    return [found.indices[start:stop].tolist() for start, stop in zip(found.edges, found.edges[1:], strict=False)]


class Numpys(Own):
    def __iter__(self):
        return iter([self.batches[place] for place in self.rng.permutation(8)])


class Within(BatchSampler):
    """The generator is that of the sampler inside."""

    def __iter__(self):
        yield from ([index, index] for index in self.sampler)


class Inside:
    def __init__(self):
        self.generator, self.epoch = torch.Generator().manual_seed(5), None

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return 9

    def __iter__(self):
        return iter([*torch.randperm(8, generator=self.generator).tolist(), self.epoch])


OWN = {
    "python": lambda: Own(random.Random(4)),
    "numpy": lambda: Numpys(np.random.default_rng(4)),
    "old numpy": lambda: Numpys(np.random.RandomState(4)),
    "inside": lambda: Within(Inside(), 1, False),
}


@pytest.mark.parametrize("kind", OWN)
def test_a_batch_sampler_with_a_generator_of_its_own_draws_by_seed_and_epoch_in_a_new_process_too(kind):
    whole, new = (SampledBatches(OWN[kind](), 9) for _ in range(2))
    epochs = [lists(whole, epoch=epoch) for epoch in range(4)]
    assert lists(new, epoch=3) == epochs[3]
    assert lists(new, seed=2, epoch=3) != epochs[3]
    assert len({str(each) for each in epochs}) > 1


class Shuffling:
    """It shuffles its own list, so what it draws depends on what it has drawn before."""

    def __init__(self):
        self.drawn = [*range(20)]

    def __len__(self):
        return 20

    def __iter__(self):
        random.shuffle(self.drawn)
        return iter(self.drawn)


class ShufflingBatches(Shuffling):
    def __iter__(self):
        return iter([[index] for index in super().__iter__()])


def test_what_depends_on_earlier_draws_is_refused_because_no_run_could_resume():
    with pytest.raises(DataFailed, match="sampler draws something else when epoch 1 is drawn again") as caught:
        SampledOrder(Shuffling(), 20, seed=1).indices(0, 0, 20)
    assert "shuffle a copy" in caught.value.fix
    with pytest.raises(DataFailed, match="batch_sampler draws something else when epoch 3 is drawn again"):
        SampledBatches(ShufflingBatches(), 20).drawn(1, 2)


def test_batches_are_the_lists_that_are_drawn_of_whatever_form():
    rows = SampledBatches([[3, -1], torch.tensor([0, 2]), np.array([1]), (4,)], 5, rows=5)
    assert lists(rows) == [[3, 4], [0, 2], [1], [4]]
    assert rows.drawn(1, 0).sizes.tolist() == [2, 2, 1, 1]


def endless():
    while True:
        yield [0, 1]


class Endless:
    def __iter__(self):
        return endless()


WRONG = {
    "no lists": (SequentialSampler(range(3)), DataFailed, "yields 0 (int), which is not a list of indices"),
    "empty": ([[0], []], DataFailed, "draws an empty batch in epoch 1, as number 1"),
    "none": ([], DataFailed, "draws no batch"),
    "beyond": ([[0], [7]], DataFailed, "the batch_sampler, in epoch 1, gives the index 7 at position 1"),
    "no index": ([[0], [0.5]], DataFailed, "something other than indices of samples"),
    "once": (iter([[0], [1]]), DataFailed, "(list_iterator), which can be read only once"),
}


@pytest.mark.parametrize("mistake", WRONG)
def test_what_is_no_batch_is_refused_with_what_was_drawn(mistake):
    given, error, words = WRONG[mistake]
    with pytest.raises(error) as caught:
        SampledBatches(given, 3, rows=3).drawn(1, 0)
    assert words in caught.value.what
    assert caught.value.fix


def test_a_batch_sampler_that_does_not_end_is_refused(monkeypatch):
    monkeypatch.setattr("hasten.data.order.sampled_order.MOST_SAMPLES", 100)
    with pytest.raises(DataFailed, match="drew more than 100 samples in epoch 1, and did not end"):
        SampledBatches(Endless(), 3).drawn(1, 0)
