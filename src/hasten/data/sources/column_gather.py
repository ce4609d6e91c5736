"""Rows of columns by their index, copied, without any Python for each row.

Copying a small batch takes less time than setting the copy up. So several small batches are gathered at once and cut
into tensors of their own. Each begins at an address that torch itself would have chosen: sums inside a matrix product
may be rounded differently at another alignment.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from operator import itemgetter
from typing import Any

import numpy as np
import torch
from torch import Tensor

Columns = Tensor | tuple[Tensor, ...] | list[Tensor] | dict[Any, Tensor]  # a tuple may be a named one

TOGETHER_BYTES = 3 << 15  # below 128 KiB: glibc asks the kernel for every larger block, and the kernel clears it
HOST_ALIGNMENT, DEVICE_ALIGNMENT = 64, 512  # bytes; of torch's allocators on a CPU and on an accelerator
_SELECTED_AS = {  # torch copies no rows of the first by index; the second have the same bits
    torch.uint16: torch.int16,
    torch.uint32: torch.int32,
    torch.uint64: torch.int64,
}


class Gather:
    """Called with rows (int64, shape (n,)), gives those rows of every column in the form that the columns have: n first
    in every shape. They are copies of the batch's own, so that it can be changed in place."""

    def __init__(self, columns: Columns) -> None:
        self._formed, given = forming(type(columns), names_of(columns)), parts_of(columns)
        self._viewed = [(at, each.dtype) for at, each in enumerate(given) if each.dtype in _SELECTED_AS]
        self._columns = [each.view(_SELECTED_AS[each.dtype]) if each.dtype in _SELECTED_AS else each for each in given]
        self._most_rows = min(TOGETHER_BYTES // max(_row_bytes(column), 1) for column in self._columns)
        self._aligned_rows = math.lcm(*map(_aligned_rows, self._columns))

    def __call__(self, rows: np.ndarray) -> Any:
        return self._formed(self._taken(torch.from_numpy(rows.copy())))  # torch.tensor(rows) takes longer

    def each(self, batches: Iterable[np.ndarray]) -> Iterator[Any]:
        """For the rows of each batch what a call would give; reads ahead where batches are small."""
        for together in self._groups(batches):
            if len(together) == 1:
                yield self(together[0])
                continue
            sizes = [len(rows) for rows in together]
            index = torch.from_numpy(np.concatenate(together))
            # Not split(), whose views are bound to each other: changing one in place would be refused, or end the
            # backward pass of its neighbour.
            columns = [torch.unsafe_split_with_sizes(taken, sizes) for taken in self._taken(index)]
            yield from map(self._formed, zip(*columns, strict=True))

    def _groups(self, batches: Iterable[np.ndarray]) -> Iterator[list[np.ndarray]]:
        group, count = list[np.ndarray](), 0
        for rows in batches:
            group.append(rows)
            count += len(rows)
            if count + len(rows) > self._most_rows or count % self._aligned_rows:
                yield group
                group, count = [], 0
        if group:
            yield group

    def _taken(self, index: Tensor) -> list[Tensor]:
        device = self._columns[0].device
        if device.type == "cuda" and index.is_cpu:
            index = index.pin_memory().to(device, non_blocking=True)  # else the host waits for all that is queued
        taken = [column.index_select(0, index.to(column.device)) for column in self._columns]
        for at, dtype in self._viewed:
            taken[at] = taken[at].view(dtype)
        return taken


class Rows:
    """Columns as a map-style data set of their rows, each in the form that the columns have."""

    steady_reason = "its samples are rows of tensors"

    def __init__(self, columns: Columns) -> None:
        self._formed, self._columns = forming(type(columns), names_of(columns)), parts_of(columns)

    def __len__(self) -> int:
        return len(self._columns[0])

    def __getitem__(self, index: int) -> Any:
        return self._formed([column[index] for column in self._columns])


def names_of(columns: Columns) -> list[Any]:
    return list(columns) if isinstance(columns, dict) else []


def parts_of(columns: Columns) -> list[Tensor]:
    if isinstance(columns, Tensor):
        return [columns]
    return [*(columns.values() if isinstance(columns, dict) else columns)]


def formed(form: type, names: Sequence[Any], parts: Sequence[Tensor]) -> Any:
    """The parts in the form that columns or batches have: a tuple, a named one, a list, a dictionary, or alone."""
    return forming(form, names)(parts)


def forming(form: type, names: Sequence[Any]) -> Callable[[Sequence[Tensor]], Any]:
    """What brings parts into a form, found once for all batches of it."""
    if hasattr(form, "_make"):
        return form._make  # pyright: ignore[reportAttributeAccessIssue]: that of a named tuple
    if issubclass(form, dict):
        return partial(_named, names)
    return tuple if issubclass(form, tuple) else list if issubclass(form, list) else itemgetter(0)


def _named(names: Sequence[Any], parts: Sequence[Tensor]) -> dict[Any, Tensor]:
    return dict(zip(names, parts, strict=True))


def _row_bytes(column: Tensor) -> int:
    """Bytes of one row; more than are ever read together where it is not known, as of a sparse column."""
    return column.nbytes // max(len(column), 1) if column.layout is torch.strided else TOGETHER_BYTES + 1


def _aligned_rows(column: Tensor) -> int:
    """The least number of rows after which a row begins at an address that the allocator would choose."""
    alignment = HOST_ALIGNMENT if column.is_cpu else DEVICE_ALIGNMENT
    return alignment // math.gcd(alignment, _row_bytes(column))
