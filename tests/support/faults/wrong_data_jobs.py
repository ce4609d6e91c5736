"""Jobs whose data is wrong: samples, their number, their order, what collates them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

from support.faults.wrong_functions import (
    LABELS,
    RAISES,
    RETURNS,
    ROWS,
    SAMPLES,
    enrolled,
    returning,
)

# ── data ────────────────────────────────────────────────────────────────────────────────────────────────────────────


class Samples(Dataset):
    def __init__(self, read: Callable[..., Any] = SAMPLES.__getitem__, count: Callable[[], Any] = lambda: 40) -> None:
        self.read, self.count = read, count

    def __len__(self) -> Any:
        return self.count()

    def __getitem__(self, index: int) -> Any:
        return self.read(index)


class Stream(IterableDataset):
    def __init__(self, start: Callable[[], Any]) -> None:
        self.start = start

    def __iter__(self) -> Any:
        return self.start()


def streamed(read: Callable[[int], Any]) -> Iterator[Any]:
    for index in range(40):
        yield read(index)


ODD = {
    "returns_a_set": lambda index: {1, 2},
    "returns_one_of_another_shape": lambda index: (torch.zeros(5 + index % 3), torch.tensor(0)),
    "returns_text_for_a_label": lambda index: (torch.zeros(6), "label"),
    "returns_a_label_of_none": lambda index: (torch.zeros(6), None),
    "returns_more_parts": lambda index: (torch.zeros(6),) * (2 + index % 2),
}
# 20 reads of training data: after two batches of eight.
enrolled("sample", lambda wrong: {"train": Samples(wrong)}, SAMPLES.__getitem__, 20, RAISES | RETURNS | ODD)
enrolled("valid_sample", lambda wrong: {"valid": Samples(wrong)}, SAMPLES.__getitem__, 20, RAISES | RETURNS | ODD)
enrolled(
    "length",
    lambda wrong: {"train": Samples(count=wrong)},
    lambda: 40,
    0,
    RAISES
    | RETURNS
    | {
        "returns_a_negative_number": returning(-1),
        "returns_a_fraction": returning(40.5),
        "returns_nothing": returning(0),
        "returns_a_huge_number": returning(2**70),
    },
)
enrolled(
    "train",
    lambda wrong: {"train": wrong},
    lambda: (ROWS, LABELS),
    0,
    RAISES
    | RETURNS
    | {
        "returns_unequal_columns": returning((ROWS, LABELS[:30])),
        "returns_no_rows": returning((ROWS[:0], LABELS[:0])),
        "returns_a_number": returning(40),
        "returns_a_loader_of_none": lambda: DataLoader([None] * 40, batch_size=8),
    },
)
enrolled("stream", lambda wrong: {"train": Stream(wrong)}, lambda: iter(SAMPLES), 0, RAISES | RETURNS)
enrolled(
    "streamed",
    lambda wrong: {"train": Stream(partial(streamed, wrong))},
    SAMPLES.__getitem__,
    20,
    RAISES | RETURNS | ODD,
)
enrolled(
    "collate",
    lambda wrong: {"train": Samples(), "collate": wrong},
    torch.utils.data.default_collate,
    3,
    RAISES
    | RETURNS
    | {
        "returns_a_number": returning(8),
        "returns_lists": lambda samples: [list(sample) for sample in samples],
    },
)


class Order:
    """A sampler of one's own."""

    def __init__(self, order: Callable[[], Any], count: Callable[[], Any] = lambda: 40) -> None:
        self.order, self.count = order, count

    def __iter__(self) -> Any:
        return iter(self.order())

    def __len__(self) -> Any:
        return self.count()


def ordered(order: Callable[[], Any]) -> dict[str, Any]:
    return {"train": DataLoader(Samples(), batch_size=8, sampler=Order(order)), "batch_size": None}


enrolled(
    "sampler",
    ordered,
    lambda: range(40),
    1,
    RAISES
    | RETURNS
    | {
        "yields_text": lambda: ["first"] * 40,
        "yields_places_beyond_the_end": lambda: range(100, 140),
        "yields_negative_places": lambda: range(-200, -160),
        "yields_too_few": lambda: range(3),
        "yields_lists": lambda: [[1, 2]] * 20,
    },
)
