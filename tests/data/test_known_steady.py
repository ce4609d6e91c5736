"""What is known to draw no random number, what that saves, and that it changes no batch."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import ConcatDataset, Dataset, StackDataset, Subset, TensorDataset, default_collate

import hasten
from data.pictures import photos
from hasten.data.loading import batch_readers as reading
from hasten.data.order.randomness import reseed
from hasten.data.sources.job_data import source_of, why_not_in_threads
from hasten.data.sources.known_steady import steady_reason, takes_draws
from support.data.loaders import ONE_WORKER, Drawing, DrawingStream, DrawingTogether, content, drawn, epoch_of, noisy

# Workers are forked while torch's own threads exist; they use none of them. Python says so from 3.12 on.
pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")

ROWS = TensorDataset(torch.arange(6), torch.arange(6))
SAMPLES = [(index, torch.zeros(6, dtype=torch.float64)) for index in range(13)]


class Augmenting(list):
    """Looks like a list of samples, and draws."""

    def __getitem__(self, index):
        return index, drawn()


class Plain(Dataset):
    """Draws nothing, and does not say so."""

    def __len__(self):
        return 6

    def __getitem__(self, index):
        return index


class Says(Plain):
    steady_reason = "it only counts"


class Rows(TensorDataset):
    pass


class Special(torch.Tensor):
    pass


STEADY = {
    "list": ([1, 2], "a list only"),
    "tuple": ((1, 2), "a tuple only"),
    "range": (range(5), "a range only"),
    "tensor": (torch.zeros(3), "rows of tensors"),
    "TensorDataset": (ROWS, "rows of tensors"),
    "part": (Subset(ROWS, [1]), "rows of tensors"),
    "part of a part": (Subset(Subset([1, 2], [0, 1]), [1]), "a list only"),
    "several": (ConcatDataset([ROWS, Says()]), "rows of tensors"),
    "beside each other": (StackDataset(ROWS, Says()), "rows of tensors"),
    "beside each other by name": (StackDataset(a=Says(), b=ROWS), "it only counts"),
    "what says it": (Says(), "it only counts"),
}
MAY_DRAW = {
    "subclass of list": Augmenting(),
    "subclass of tuple": type("Own", (tuple,), {})(),
    "subclass of TensorDataset": Rows(torch.zeros(2)),
    "subclass of Tensor": torch.zeros(2).as_subclass(Special),
    "data set of the user's": Plain(),
    "part of one": Subset(Plain(), [1]),
    "one among several": ConcatDataset([ROWS, Plain()]),
    "one beside others": StackDataset(ROWS, Plain()),
    "subclass of Subset": type("Own", (Subset,), {})(ROWS, [1]),
}


@pytest.mark.parametrize(("data", "reason"), STEADY.values(), ids=STEADY)
def test_what_cannot_draw_is_known_with_the_reason(data, reason):
    assert reason in steady_reason(data)


@pytest.mark.parametrize("data", MAY_DRAW.values(), ids=MAY_DRAW)
def test_everything_else_may_draw(data):
    assert steady_reason(data) is None


def seeds_set(monkeypatch, data, **arguments):
    """How often the global generators are seeded while an epoch is read."""
    seen = []

    def counting(number):
        seen.append(number)
        reseed(number)

    monkeypatch.setattr(reading, "reseed", counting)
    epoch_of(data, **arguments)
    return len(seen)


def test_a_list_is_not_seeded_and_a_subclass_of_it_is(monkeypatch):
    assert seeds_set(monkeypatch, SAMPLES) == 0
    assert seeds_set(monkeypatch, Augmenting(SAMPLES)) == 13
    assert seeds_set(monkeypatch, SAMPLES, collate=noisy) == 4  # once for each batch


def test_pictures_that_are_given_their_numbers_are_not_seeded(monkeypatch, tmp_path):
    data = hasten.ImageFolder(photos(tmp_path, 6), hasten.RandomResizedCrop(8))
    assert seeds_set(monkeypatch, data) == 0
    assert seeds_set(monkeypatch, data, collate=default_collate) == 0
    assert seeds_set(monkeypatch, data, collate=lambda samples: default_collate(samples)) == 8  # and two batches


@pytest.mark.trap(39)
@settings(max_examples=20)
@given(
    count=st.integers(1, 13),
    batch_size=st.integers(1, 6),
    epoch=st.integers(0, 3),
    options=st.sampled_from([{}, {"options": ONE_WORKER}]),
)
def test_a_collate_that_draws_gives_the_batches_that_seeding_every_sample_gives(count, batch_size, epoch, options):
    class Undeclared(Dataset):
        def __len__(self):
            return count

        def __getitem__(self, index):
            return SAMPLES[index]

    found, wanted = (
        epoch_of(data, epoch, batch_size=batch_size, collate=noisy, **options)
        for data in (SAMPLES[:count], Undeclared())
    )
    assert content(found) == content(wanted)


def test_a_list_is_read_as_a_data_set_that_says_nothing_is():
    class Same(Dataset):
        def __len__(self):
            return 13

        def __getitem__(self, index):
            return SAMPLES[index]

    for collate in (None, noisy):
        assert content(epoch_of(SAMPLES, 1, collate=collate)) == content(epoch_of(Same(), 1, collate=collate))


def test_a_data_set_that_only_has_a_field_of_the_same_name_is_read_as_ever():
    class Padded(Drawing):
        fill, finished, placed, draws = 0, False, None, 3

    assert not takes_draws(Padded(5))
    assert not takes_draws(np.zeros(3))
    assert content(epoch_of(Padded(5))) == content(epoch_of(Drawing(5)))
    source = source_of(Padded(5), field="train")
    assert not source.has_device_form
    assert source.finished("a batch") == "a batch"


# Threads


@pytest.mark.parametrize(
    ("data", "collate", "told"),
    [
        ((torch.zeros(4),), None, "gathered from memory"),
        (DrawingStream(4), None, "iterable data set"),
        (Drawing(4), None, "its samples may draw"),
        (DrawingTogether(4), None, "its samples may draw"),
        ([1, 2, 3], noisy, "its collate function may draw"),
    ],
)
def test_what_may_draw_from_the_generators_of_the_process_is_not_read_in_threads(data, collate, told):
    assert told in why_not_in_threads(source_of(data, field="train", collate=collate))


def test_what_draws_nothing_or_is_given_its_numbers_is_read_in_threads(tmp_path):
    pictures = hasten.ImageFolder(photos(tmp_path, 6), hasten.RandomResizedCrop(8))
    for data in ([1, 2, 3], Says(), pictures, Subset(pictures, [0, 1])):
        assert why_not_in_threads(source_of(data, field="train")) is None
    assert "collate" in why_not_in_threads(source_of(pictures, field="train", collate=noisy))


# What a class of the user's makes of it


class Inverted(hasten.ImageFolder):
    def __getitem__(self, index):
        picture, label = super().__getitem__(index)
        return -picture, label


class Wrapped:
    """Hands on what it has not, and draws."""

    def __init__(self, inner):
        self.inner = inner

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def __len__(self):
        return len(self.inner)

    def __getitem__(self, index):
        return self.inner[index], drawn()


def test_a_subclass_that_reads_in_its_own_way_is_read_in_that_way(tmp_path):
    root = photos(tmp_path, count=6)
    data = Inverted(root, hasten.CenterCrop(8))
    assert not takes_draws(data)
    plain = epoch_of(hasten.ImageFolder(root, hasten.CenterCrop(8)))
    for one, other in zip(epoch_of(data), plain, strict=True):
        assert torch.equal(one.batch[0], -other.batch[0])


def test_what_a_wrapper_hands_on_is_not_said_of_the_wrapper():
    class Saying(Plain):
        steady_reason = "it says so"

        def __getitem__(self, index):
            return index

    assert steady_reason(Saying()) == "it says so"
    assert steady_reason(Wrapped(Saying())) is None


def test_a_subclass_that_draws_does_not_inherit_that_its_parent_does_not():
    class Saying(Plain):
        steady_reason = "it says so"

        def __getitem__(self, index):
            return index

    class Drawn(Saying):
        def __getitem__(self, index):
            return index, drawn()

    assert steady_reason(Drawn()) is None
