import random
from itertools import permutations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hasten.data.order import sample_order as order
from hasten.data.order.sample_order import CHUNK, Order, SampledOrder, walked
from hasten.errors import DataFailed, UserCodeFailed

seeds = st.integers(0, 2**63 - 1)
epochs = st.integers(0, 2**40)


def whole(count: int, seed: int = 0, epoch: int = 0) -> np.ndarray:
    return Order(count, seed, shuffle=True).indices(epoch, 0, count)


@pytest.mark.trap(40)
@given(count=st.integers(1, 3000), seed=seeds, epoch=epochs)
def test_every_epoch_visits_every_sample_once(count, seed, epoch):
    assert np.array_equal(np.sort(whole(count, seed, epoch)), np.arange(count))


@given(count=st.integers(1, 5000), key=st.integers(0, 2**64 - 1))
def test_the_walk_is_one_to_one_for_any_count(count, key):
    found = walked(np.arange(count), count, key)
    assert np.array_equal(np.sort(found), np.arange(count))


@pytest.mark.trap(40)
@pytest.mark.parametrize("count", [CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK + 17])
def test_nothing_is_lost_where_chunks_meet(count):
    found = whole(count, seed=5)
    assert found.dtype == np.int64
    assert np.array_equal(np.sort(found), np.arange(count))


@given(data=st.data(), count=st.sampled_from([1, 2, 7, 1000, 2 * CHUNK + 5]), seed=seeds)
def test_any_part_of_an_epoch_is_what_the_whole_has_there(data, count, seed):
    start = data.draw(st.integers(0, count))
    stop = data.draw(st.integers(start, min(count, start + 2 * CHUNK)))
    part = Order(count, seed, shuffle=True).indices(3, start, stop)
    assert np.array_equal(part, whole(count, seed, 3)[start:stop])


def test_fifty_million_samples_are_entered_in_the_middle_without_building_their_order():
    found = Order(50_000_000, 0, shuffle=True).indices(0, 25_000_000, 25_000_128)
    assert len(set(found.tolist())) == 128
    assert found.min() >= 0
    assert found.max() < 50_000_000


@given(count=st.integers(100, 300), seed=seeds, epoch=epochs)
def test_another_epoch_or_seed_is_another_order(count, seed, epoch):
    assert not np.array_equal(whole(count, seed, epoch), whole(count, seed, epoch + 1))
    assert not np.array_equal(whole(count, seed, epoch), whole(count, (seed + 1) % 2**63, epoch))


def test_an_order_is_the_same_on_every_machine_and_in_every_version():
    assert whole(8, seed=1, epoch=2).tolist() == [0, 7, 6, 3, 1, 5, 4, 2]
    assert Order(1_000_000, 1, shuffle=True).indices(2, 500_000, 500_004).tolist() == [915831, 473741, 306138, 9530]


@pytest.mark.parametrize("shuffle", [True, False])
def test_what_is_given_out_cannot_be_written_to(shuffle):
    with pytest.raises(ValueError, match="read-only"):
        Order(100, 0, shuffle=shuffle).indices(0, 0, 10)[:] = 0


def test_without_shuffling_samples_come_as_they_are():
    assert Order(100, 0, shuffle=False).indices(4, 95, 100).tolist() == [95, 96, 97, 98, 99]


def test_a_chunk_is_computed_once_for_all_its_batches(monkeypatch):
    calls = []
    monkeypatch.setattr(order, "walked", lambda *arguments: calls.append(1) or walked(*arguments))
    shuffled = Order(CHUNK + 10, 0, shuffle=True)
    for start in range(0, CHUNK, 1024):
        shuffled.indices(0, start, start + 1024)
    assert len(calls) == 1


def chi_square(observed: np.ndarray, expected: float) -> float:
    """In standard deviations from its own mean, for many degrees of freedom."""
    freedom = observed.size - 1
    return float((((observed - expected) ** 2 / expected).sum() - freedom) / np.sqrt(2 * freedom))


@pytest.mark.parametrize("count", [3, 4])
def test_all_orders_of_a_few_samples_are_equally_frequent(count):
    epochs = 12_000
    shuffled = Order(count, 11, shuffle=True)
    seen = dict.fromkeys(permutations(range(count)), 0)
    for epoch in range(epochs):
        seen[tuple(shuffled.indices(epoch, 0, count).tolist())] += 1
    assert abs(chi_square(np.array(list(seen.values())), epochs / len(seen))) < 4


@pytest.mark.parametrize("count", [8, 61])
def test_every_sample_is_at_every_position_equally_often(count):
    epochs = 4000
    shuffled = Order(count, 12, shuffle=True)
    orders = np.stack([shuffled.indices(epoch, 0, count) for epoch in range(epochs)])
    table = np.zeros((count, count))
    np.add.at(table, (np.arange(count)[None], orders), 1)
    assert abs(chi_square(table, epochs / count)) < 4


@pytest.mark.parametrize("count", [50, 300])
def test_every_pair_of_neighbours_is_equally_frequent(count):
    epochs = 1000
    shuffled = Order(count, 13, shuffle=True)
    table = np.zeros((count, count))
    for epoch in range(epochs):
        drawn = shuffled.indices(epoch, 0, count)
        np.add.at(table, (drawn[:-1], drawn[1:]), 1)
    pairs = table[~np.eye(count, dtype=bool)]
    assert abs(chi_square(pairs, epochs * (count - 1) / pairs.size)) < 4


def test_the_walk_spreads_a_large_data_set_evenly():
    count, keys = 100_003, 40
    drawn = np.stack([walked(np.arange(4096), count, key * 7919) for key in range(keys)])
    cells, _ = np.histogram(drawn, bins=64, range=(0, count))
    assert abs(chi_square(cells, drawn.size / 64)) < 4
    steps = np.diff(drawn, axis=1) % count
    cells, _ = np.histogram(steps, bins=64, range=(0, count))
    assert abs(chi_square(cells, steps.size / 64)) < 4
    bits = (drawn & 1) * 2 + (np.arange(4096) & 1)
    assert abs(chi_square(np.bincount(bits.ravel()), drawn.size / 4)) < 4


def test_two_epochs_of_a_large_data_set_agree_at_a_position_as_rarely_as_chance_has_it():
    count = 2 * CHUNK
    agreeing = sum(int((whole(count, 1, epoch) == whole(count, 1, epoch + 1)).sum()) for epoch in range(12))
    assert 2 <= agreeing <= 26  # Poisson with mean 12


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


@pytest.mark.parametrize("count", [19, 21])
def test_a_sampler_whose_length_is_wrong_is_an_error(count):
    with pytest.raises(DataFailed, match="its length says"):
        SampledOrder(Halves(), count, seed=1).indices(0, 0, 5)


class Drawing:
    """A sampler that yields what it was given, and says so much of its length."""

    def __init__(self, drawn, length=None):
        self.drawn, self.length = drawn, len(drawn) if length is None else length

    def __len__(self):
        return self.length

    def __iter__(self):
        return iter(self.drawn)


@pytest.mark.parametrize("wrong", [2.9, "2", (2, 0), None])
def test_a_sampler_that_draws_no_indices_is_told_what_it_drew(wrong):
    drawn = [*range(CHUNK + 1), wrong]
    with pytest.raises(DataFailed) as caught:
        SampledOrder(Drawing(drawn), len(drawn), seed=1).indices(3, 0, 5)
    assert "the sampler, in epoch 3, gives" in caught.value.what
    assert f"at position {CHUNK + 1}" in caught.value.what


def test_a_sampler_may_draw_any_index_that_a_data_set_answers_to():
    assert SampledOrder(Drawing([70, -3]), 2, seed=1).indices(0, 0, 2).tolist() == [70, -3]


def test_rows_that_a_sampler_draws_are_counted_from_the_end_or_refused():
    assert SampledOrder(Drawing([7, -8, -1]), 3, seed=1, rows=8).indices(0, 0, 3).tolist() == [7, 0, 7]
    with pytest.raises(DataFailed, match="the sampler, in an evaluation, gives the index 8 at position 1"):
        SampledOrder(Drawing([7, 8, -1]), 3, seed=1, rows=8).indices(-1, 0, 3)


@pytest.mark.parametrize("length", [CHUNK, 2 * CHUNK + 3])
def test_a_sampler_longer_than_a_chunk_is_taken_whole(length):
    drawn = np.random.default_rng(0).integers(0, 1 << 40, length)
    assert np.array_equal(SampledOrder(Drawing(drawn), length, seed=1).indices(0, 0, length), drawn)


def test_a_sampler_that_yields_nothing_has_another_length_than_it_says():
    with pytest.raises(DataFailed, match="drew 0 samples in epoch 2, and its length says 5"):
        SampledOrder(Drawing([], 5), 5, seed=1).indices(2, 0, 5)


def test_an_error_of_hastens_own_in_a_sampler_stays_what_it_is():
    def reading():
        yield 0
        raise DataFailed("a shard is damaged", fix="pack it again")

    with pytest.raises(DataFailed, match="a shard is damaged"):
        SampledOrder(Drawing(reading(), 2), 2, seed=1).indices(0, 0, 2)


def test_a_sampler_that_raises_is_the_users_code_and_names_its_line():
    def failing():
        yield 0
        raise KeyError("no weights")

    with pytest.raises(UserCodeFailed, match="the sampler raised in epoch 0: KeyError: 'no weights'") as caught:
        SampledOrder(Drawing(failing(), 2), 2, seed=1).indices(0, 0, 2)
    assert "in failing" in caught.value.where
    assert isinstance(caught.value.__cause__, KeyError)
