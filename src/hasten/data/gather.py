"""Rows of columns by their index, copied, without any Python for each of them.

A small batch is copied in less time than it takes to set the copy up. So where several are asked for, they are gathered
at once and cut into views. Each view begins at an address that torch itself would have chosen, a multiple of 64 bytes:
sums inside a matrix product may be rounded otherwise elsewhere, and a batch must not depend on what is read with it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

Columns = Tensor | tuple[Tensor, ...] | list[Tensor] | dict[str, Tensor]

TOGETHER_BYTES = 3 << 15  # below 128 KiB: glibc asks the kernel for every larger block, and the kernel clears it
ALIGNMENT = 64


class Gather:
    """Called with rows (int64, shape (n,)), gives those rows of every column in the form that the columns have: n first
    in every shape, in newly allocated memory, so that a batch can be changed in place."""

    def __init__(self, columns: Columns) -> None:
        self._form = type(columns)
        self._names = list(columns) if isinstance(columns, dict) else []
        self._columns = (
            [columns]
            if isinstance(columns, Tensor)
            else [*(columns.values() if isinstance(columns, dict) else columns)]
        )
        row_bytes = [column.nbytes // max(len(column), 1) for column in self._columns]
        self._enough = TOGETHER_BYTES // max(*row_bytes, 1)
        self._unit = math.lcm(*(ALIGNMENT // math.gcd(ALIGNMENT, each) for each in row_bytes))

    def __call__(self, rows: np.ndarray) -> Any:
        return self._formed(self._taken(torch.tensor(rows)))

    def each(self, batches: Iterable[np.ndarray]) -> Iterator[Any]:
        """For the rows of each batch what a call would give; reads ahead where batches are small."""
        for together in self._groups(batches):
            if len(together) == 1:
                yield self(together[0])
                continue
            sizes = [len(rows) for rows in together]
            columns = [taken.split(sizes) for taken in self._taken(torch.from_numpy(np.concatenate(together)))]
            yield from map(self._formed, zip(*columns, strict=True))

    def _groups(self, batches: Iterable[np.ndarray]) -> Iterator[list[np.ndarray]]:
        group, count = list[np.ndarray](), 0
        for rows in batches:
            group.append(rows)
            count += len(rows)
            if count + len(rows) > self._enough or count % self._unit:
                yield group
                group, count = [], 0
        if group:
            yield group

    def _taken(self, index: Tensor) -> list[Tensor]:
        return [column.index_select(0, index.to(column.device)) for column in self._columns]

    def _formed(self, taken: Sequence[Tensor]) -> Any:
        if self._form is tuple:
            return tuple(taken)
        if self._form is list:
            return list(taken)
        return dict(zip(self._names, taken, strict=True)) if self._form is dict else taken[0]
