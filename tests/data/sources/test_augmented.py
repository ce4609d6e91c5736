"""A data set in two parts, and where others can be cut."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import ConcatDataset, Subset, TensorDataset

from hasten.data.sources.augmented import Augmented, seam_of
from support.data.cached_samples import Grey, jittered, same


class Doubled:
    """Reads from whatever it is given: a stand-in for a cache."""

    def __init__(self, dataset: object) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)  # pyright: ignore[reportArgumentType]

    def __getitem__(self, index: int) -> object:
        return ("doubled", self.dataset[index])  # pyright: ignore[reportIndexIssue]


def test_the_seam_lies_between_data_set_and_transform():
    inner = Grey()
    seam = seam_of(Augmented(inner, str))
    assert seam is not None
    assert seam.steady is inner
    assert not seam.whole
    assert seam.rebuilt(Doubled(inner))[3] == str(("doubled", inner[3]))


def test_a_subset_is_cut_where_its_data_set_is_and_keeps_its_own_samples():
    inner = Grey()
    seam = seam_of(Subset(Subset(Augmented(inner, jittered), [8, 6, 4]), [2, 0]))
    assert seam is not None
    assert seam.steady is inner
    rebuilt = seam.rebuilt(inner)
    assert [int(rebuilt[index][1]) for index in range(len(rebuilt))] == [4, 8]


@pytest.mark.parametrize(
    "dataset", [TensorDataset(torch.arange(3)), Subset(TensorDataset(torch.arange(3)), [1]), [1, 2]], ids=type
)
def test_a_data_set_that_draws_nothing_is_steady_as_a_whole(dataset):
    seam = seam_of(dataset)
    assert seam is not None
    assert seam.whole
    assert same(seam.rebuilt(seam.steady)[0], dataset[0])


@pytest.mark.trap(41)
@pytest.mark.parametrize("dataset", [Grey(), ConcatDataset([Grey()]), Subset(Grey(), [1])], ids=type)
def test_of_a_data_set_that_does_not_say_nothing_is_known(dataset):
    assert seam_of(dataset) is None
