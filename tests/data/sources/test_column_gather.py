from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import default_collate

from hasten.data.sources.column_gather import HOST_ALIGNMENT, Gather, Rows
from support.data.cached_samples import same

DTYPES = [
    torch.float32,
    torch.float64,
    torch.bfloat16,
    torch.float16,
    torch.uint8,
    torch.int64,
    torch.bool,
    torch.cfloat,
]


@given(
    dtype=st.sampled_from(DTYPES),
    shape=st.lists(st.integers(0, 3), max_size=3),
    batches=st.lists(st.lists(st.integers(0, 6), max_size=20), max_size=6),
)
def test_the_rows_are_those_that_torch_selects_alone_and_together(dtype, shape, batches):
    column = torch.arange(7 * np.prod(shape, dtype=int)).reshape(7, *shape).to(dtype)
    labels = torch.arange(7)
    gather, batches = Gather((column, labels)), [np.array(rows, dtype=np.int64) for rows in batches]
    for found in (list(map(gather, batches)), list(gather.each(batches))):
        for (values, numbers), rows in zip(found, batches, strict=True):
            assert values.dtype is dtype
            assert torch.equal(values, column[torch.from_numpy(rows)])
            assert numbers.tolist() == rows.tolist()


class Row(NamedTuple):
    values: torch.Tensor
    labels: torch.Tensor


@pytest.mark.parametrize(
    "columns",
    [
        torch.arange(6.0),
        (torch.arange(6.0), torch.arange(6)),
        Row(torch.arange(6.0), torch.arange(6)),
        [torch.arange(6.0)],
        {0: torch.arange(6.0), "labels": torch.arange(6)},
    ],
    ids=["alone", "tuple", "named tuple", "list", "dictionary"],
)
def test_batches_and_rows_have_the_form_of_the_columns(columns):
    data = Rows(columns)
    assert len(data) == 6
    wanted = default_collate([data[index] for index in (4, 1)])
    gather, rows = Gather(columns), np.array([4, 1])
    for found in [gather(rows), *gather.each([rows, rows])]:
        assert same(found, wanted if type(columns) is not tuple else tuple(wanted))


def starts_of(column: torch.Tensor, size: int, many: int) -> list[int]:
    batches = Gather({"rows": column, "labels": torch.zeros(len(column))}).each([np.arange(size)] * many)
    return [batch["rows"].storage_offset() * column.itemsize for batch in batches]


@pytest.mark.parametrize(("width", "together"), [(16, True), (8, True), (5, False), (1, False)])
def test_batches_are_read_together_only_where_each_begins_as_torch_would_let_it(width, together):
    starts = starts_of(torch.zeros(100, width), 32 if together else 31, 4)
    assert all(start % HOST_ALIGNMENT == 0 for start in starts)
    assert any(starts) == together


def test_a_batch_can_be_changed_without_changing_its_neighbours_or_the_data():
    column = torch.ones(64, 16)
    first, second = Gather(column).each([np.arange(32), np.arange(32)])
    first.zero_()
    assert second.sum() == 32 * 16
    assert column.sum() == 64 * 16


@pytest.mark.gpu
def test_columns_on_the_device_give_batches_on_the_device():
    column = torch.arange(8.0, device="cuda")
    assert torch.equal(Gather(column)(np.array([5, 2])), column[[5, 2]])
