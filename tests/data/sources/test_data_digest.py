"""What is the same data, and what is other data, as far as a digest that reads no sample can tell."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import (
    ConcatDataset,
    DataLoader,
    Dataset,
    IterableDataset,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
    random_split,
)

from hasten.data.sources.data_digest import data_digest
from hasten.data.sources.job_data import source_of

Build = Callable[[int], Any]  # with a seed


def digest(data: Any) -> str:
    return data_digest(source_of(data, field="train"))


def rows(seed: int, count: int = 100) -> torch.Tensor:
    return torch.randn(count, 5, generator=torch.Generator().manual_seed(seed))


def labels(seed: int) -> torch.Tensor:
    return torch.randint(0, 10, (100,), generator=torch.Generator().manual_seed(seed))


class Reading(Dataset[Any]):
    """Fails the test when a sample is read."""

    def __init__(self, **held: Any) -> None:
        vars(self).update(held)

    def __len__(self) -> int:
        return 100

    def __getitem__(self, index: int) -> Any:
        raise AssertionError(f"sample {index} was read")


class Stream(IterableDataset[Any]):
    def __init__(self, position: torch.Tensor) -> None:
        self.position = position

    def __iter__(self) -> Iterator[Any]:
        raise AssertionError("a sample was read")


def shuffled(seed: int) -> list[int]:
    return np.random.default_rng(seed).permutation(100).tolist()


FIXED = rows(0), labels(0)
OTHER_WITH_ANOTHER_SEED: dict[str, Build] = {
    "a tensor": rows,
    "a dictionary of arrays": lambda seed: {"x": np.random.default_rng(seed).random((100, 3)), "y": FIXED[1].numpy()},
    "half precision": lambda seed: rows(seed).bfloat16(),
    "complex numbers": lambda seed: torch.complex(rows(seed), rows(seed + 9)),
    "bits": lambda seed: rows(seed) > 0,
    "a random split": lambda seed: random_split(TensorDataset(*FIXED), [60, 40], torch.Generator().manual_seed(seed))[
        0
    ],
    "a random split of a data set": lambda seed: Subset(Reading(), shuffled(seed)),
    "an array that a data set holds": lambda seed: Reading(table=rows(seed).numpy()),
    "files and classes that a data set holds": lambda seed: Reading(
        samples=[(Path("a.png"), label) for label in labels(seed).tolist()]
    ),
    "a list of dictionaries": lambda seed: [{"text": "a", "label": label} for label in labels(seed).tolist()],
    "data sets joined": lambda seed: ConcatDataset([Reading(), Reading(table=rows(seed))]),
    "a list of samples": lambda seed: [*zip(rows(seed), range(100), strict=True)],
    "rows that a sampler chose": lambda seed: DataLoader(
        Reading(), batch_size=5, sampler=SubsetRandomSampler(shuffled(seed)[:50])
    ),
    "weights of a sampler": lambda seed: DataLoader(
        Reading(), batch_size=5, sampler=WeightedRandomSampler(rows(seed)[:, 0].abs().tolist(), 100)
    ),
}


@pytest.mark.parametrize("kind", OTHER_WITH_ANOTHER_SEED)
def test_another_draw_is_other_data_and_the_same_draw_is_not(kind):
    build = OTHER_WITH_ANOTHER_SEED[kind]
    assert digest(build(0)) == digest(build(0))
    assert len({digest(build(seed)) for seed in range(5)}) == 5


def test_data_of_another_length_form_or_dtype_is_other_data():
    table = FIXED[0]
    found = [table, table[:-1], table[:, :4], table.double(), (table, table)]
    assert len({digest(each) for each in found}) == len(found)
    assert digest(Reading()) != digest(Subset(Reading(), range(99)))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        pytest.param(FIXED[0], FIXED[0] * (1 + 2e-7), id="rounded differently"),
        pytest.param(Reading(folder="/data"), Reading(folder="/mnt/data"), id="in another folder"),
        pytest.param([("/a/1.png", 0)] * 9, [("/b/c/1.png", 0)] * 9, id="a list of files in another folder"),
        pytest.param(Reading(read=0), Reading(read=70), id="of which more was read"),
        pytest.param(Reading(cache={}), Reading(cache={0: rows(0), 1: 7}), id="with samples in a dictionary"),
        pytest.param(
            Reading(cache=[None] * 9), Reading(cache=[(rows(0), 7)] * 9), id="with samples in a list that was filled"
        ),
        pytest.param(
            Reading(part=Reading(cache=[])), Reading(part=Reading(cache=[rows(0)])), id="with samples kept in a part"
        ),
        pytest.param(Reading(names=np.array(["a"])), Reading(names=np.array(["b"])), id="with other texts"),
        pytest.param(Stream(torch.zeros(1)), Stream(torch.ones(1)), id="a stream elsewhere"),
    ],
)
def test_what_may_differ_is_no_other_data(one, other):
    assert digest(one) == digest(other)


def test_lists_within_lists_are_looked_at_as_far_as_a_budget_allows():
    class Counting(list[Any]):
        looks = 0

        def __getitem__(self, place: Any) -> Any:
            Counting.looks += 1
            return super().__getitem__(place)

    deep: Any = 7
    for _ in range(5):
        deep = Counting([deep] * 64)
    digest(deep)
    assert Counting.looks < 5_000


def test_numbers_that_are_none_or_not_in_memory_and_empty_rows_have_a_digest():
    for each in (
        torch.full((10, 2), torch.nan),
        torch.zeros(10, 0),
        Reading(weights=torch.empty(3, device="meta"), table=torch.eye(3).to_sparse(), scale=torch.tensor(2.0)),
    ):
        assert digest(each) == digest(each)


def test_a_data_set_that_fills_tensors_by_being_read_is_the_same_data_in_its_process():
    class Filling(Dataset[Any]):
        def __init__(self) -> None:
            self.kept, self.has = torch.zeros(8, 3), np.zeros(8, bool)

        def __len__(self) -> int:
            return 8

        def __getitem__(self, index: int) -> Any:
            self.kept[index], self.has[index] = float(index + 1), True
            return self.kept[index], 0

    data = Filling()
    before = data_digest(source_of(data, field="train", batch_size=4))
    assert [data[index] for index in range(8)]
    assert data_digest(source_of(data, field="train", batch_size=4)) == before
    assert data_digest(source_of(Filling(), field="train", batch_size=4)) == before
