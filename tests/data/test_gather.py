from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hasten.data.gather import SMALL_BYTES, Gather

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
    rows=st.lists(st.integers(0, 6), max_size=20),
)
def test_the_rows_are_those_that_torch_selects(dtype, shape, rows):
    column = torch.arange(7 * np.prod(shape, dtype=int)).reshape(7, *shape).to(dtype)
    found = Gather(column)(np.array(rows, dtype=np.int64))
    assert found.dtype is dtype
    assert torch.equal(found, column[rows] if rows else column[:0])


@pytest.mark.parametrize("more", [-1, 0, 1], ids=["below", "at", "above"])
def test_a_batch_that_is_no_longer_small_holds_the_same_rows(more):
    column = torch.arange(2 * SMALL_BYTES, dtype=torch.uint8).reshape(-1, 256)
    rows = np.random.default_rng(0).integers(len(column), size=SMALL_BYTES // 256 + more)
    assert torch.equal(Gather(column)(rows), column[torch.from_numpy(rows)])


def test_rows_of_a_view_that_is_not_contiguous_are_found():
    column = torch.arange(12.0).reshape(3, 4).T
    assert torch.equal(Gather(column)(np.array([3, 1])), column[[3, 1]])


@pytest.mark.parametrize("rows", [2, SMALL_BYTES], ids=["small", "large"])
def test_read_only_rows_are_taken_without_a_warning(rows):
    index = np.zeros(rows, dtype=np.int64)
    index.setflags(write=False)
    assert Gather((torch.ones(1, 2),))(index)[0].sum() == 2 * rows


def test_a_worker_process_is_sent_every_column_once():
    column = torch.zeros(1000, 8)
    sent = pickle.dumps(Gather({"rows": column}))
    assert len(sent) < 1.2 * column.nbytes
    assert torch.equal(pickle.loads(sent)(np.array([1]))["rows"], column[:1])  # noqa: S301 - our own bytes


@pytest.mark.gpu
def test_columns_on_the_device_give_batches_on_the_device():
    column = torch.arange(8.0, device="cuda")
    assert torch.equal(Gather(column)(np.array([5, 2])), column[[5, 2]])
