"""What is known to draw no random number, what that saves, and that it changes no batch."""

import pytest
import torch
from torch.utils.data import ConcatDataset, Dataset, StackDataset, Subset, TensorDataset

import hasten
from hasten.data.sources.augmented import steady_reason
from hasten.data.sources.job_data import source_of, why_not_in_threads
from support.data.image_cases import photos
from support.data.loaders import Drawing, DrawingStream, drawn, noisy

ROWS = TensorDataset(torch.arange(6), torch.arange(6))


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


STEADY = {
    "list": ([1, 2], "a list only"),
    "tensor": (torch.zeros(3), "rows of tensors"),
    "part of a part": (Subset(Subset([1, 2], [0, 1]), [1]), "a list only"),
    "several": (ConcatDataset([ROWS, Says()]), "rows of tensors"),
    "beside each other by name": (StackDataset(a=Says(), b=ROWS), "it only counts"),
    "what says it": (Says(), "it only counts"),
}
MAY_DRAW = {
    "subclass of list": Augmenting(),
    "subclass of TensorDataset": Rows(torch.zeros(2)),
    "data set of the user's": Plain(),
    "part of one": Subset(Plain(), [1]),
    "one among several": ConcatDataset([ROWS, Plain()]),
}


@pytest.mark.parametrize(("data", "reason"), STEADY.values(), ids=STEADY)
def test_what_cannot_draw_is_known_with_the_reason(data, reason):
    assert reason in steady_reason(data)


@pytest.mark.parametrize("data", MAY_DRAW.values(), ids=MAY_DRAW)
def test_everything_else_may_draw(data):
    assert steady_reason(data) is None


@pytest.mark.parametrize(
    ("data", "collate", "told"),
    [
        ((torch.zeros(4),), None, "gathered from memory"),
        (DrawingStream(4), None, "iterable data set"),
        (Drawing(4), None, "its samples may draw"),
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
