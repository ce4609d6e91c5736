from __future__ import annotations

import pickle
from collections import OrderedDict
from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import default_collate

from hasten.data.sources.column_gather import HOST_ALIGNMENT, TOGETHER_BYTES, Gather, Rows
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
UNSIGNED = [torch.uint16, torch.uint32, torch.uint64]


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


@pytest.mark.parametrize("shape", [(), (3,), (2, 5)])
@pytest.mark.parametrize("dtype", UNSIGNED)
def test_numbers_that_torch_cannot_select_by_index_are_gathered_too(dtype, shape):
    limits = torch.iinfo(dtype)
    values = np.random.default_rng(0).integers(limits.min, limits.max, (64, *shape), np.uint64, endpoint=True)
    column = torch.from_numpy(values.astype(str(dtype).removeprefix("torch.")))
    gather, batches = Gather((column, torch.arange(64))), [np.arange(32), np.arange(32, 64)]
    for found in (list(map(gather, batches)), list(gather.each(batches))):
        for (numbers, _), rows in zip(found, batches, strict=True):
            assert numbers.dtype is dtype
            assert np.array_equal(numbers.numpy(), column.numpy()[rows])


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


def test_a_large_batch_is_read_by_itself():
    column = torch.zeros(32, TOGETHER_BYTES // 4 // 32)
    assert starts_of(column, 32, 3) == [0, 0, 0]
    assert starts_of(column, 16, 3) == [0, TOGETHER_BYTES // 2, 0]


def test_a_batch_can_be_changed_without_changing_its_neighbours_or_the_data():
    column = torch.ones(64, 16)
    first, second = Gather(column).each([np.arange(32), np.arange(32)])
    first.zero_()
    assert second.sum() == 32 * 16
    assert column.sum() == 64 * 16


def test_batches_read_together_do_not_know_of_each_other():
    first, second = Gather(torch.ones(64, 16)).each([np.arange(32), np.arange(32)])
    weight = torch.ones(16, requires_grad=True)
    (first * weight).sum().backward()
    kept = (first * weight).sum()
    second += weight  # a trained offset, added in place
    kept.backward()
    assert weight.grad.eq(64).all()


def test_a_sparse_column_is_read_batch_by_batch():
    column = torch.eye(8).to_sparse()
    batches = list(Gather((column, torch.arange(8))).each([np.arange(4), np.arange(4, 8)]))
    assert [batch[0].to_dense().argmax(dim=1).tolist() for batch in batches] == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_no_more_is_asked_for_than_is_read_together():
    asked = []
    requests = (asked.append(number) or np.arange(32) for number in range(1000))
    next(Gather(torch.zeros(64, 16)).each(requests))
    assert len(asked) == TOGETHER_BYTES // (32 * 64)


def test_rows_of_a_view_that_is_not_contiguous_are_found():
    column = torch.arange(12.0).reshape(3, 4).T
    assert torch.equal(Gather(column)(np.array([3, 1])), column[[3, 1]])


def test_a_worker_process_is_sent_every_column_once():
    column = torch.zeros(1000, 8)
    sent = pickle.dumps(Gather({"rows": column}))
    assert len(sent) < 1.2 * column.nbytes
    assert torch.equal(pickle.loads(sent)(np.array([1]))["rows"], column[:1])  # noqa: S301 - our own bytes


class Columns(list[torch.Tensor]):
    """As some libraries have one of their own."""


class Pair(tuple[torch.Tensor, ...]):
    pass


@pytest.mark.parametrize(
    ("given", "form", "names"), [(Columns, list, [0, 1]), (Pair, tuple, [0, 1]), (OrderedDict, dict, ["a", "b"])]
)
def test_no_column_is_lost_in_a_form_of_its_own_kind(given, form, names):
    parts = [torch.arange(4), torch.arange(4.0)]
    columns = given(zip(names, parts, strict=True) if form is dict else parts)
    for found in (Gather(columns)(np.array([3, 1])), Rows(columns)[np.array([3, 1])]):
        assert type(found) is form
        assert [found[name].tolist() for name in names] == [[3, 1], [3.0, 1.0]]


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", UNSIGNED)
def test_on_the_device_all_numbers_are_gathered(dtype):
    column = torch.arange(8).to(dtype)
    found = Gather(column.to("cuda"))(np.array([5, 2]))
    assert (found.dtype, found.tolist()) == (dtype, [5, 2])


@pytest.mark.gpu
def test_columns_on_the_device_give_batches_on_the_device():
    column = torch.arange(8.0, device="cuda")
    assert torch.equal(Gather(column)(np.array([5, 2])), column[[5, 2]])
