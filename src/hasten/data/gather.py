"""Rows of columns by their index, copied, without any Python for each of them.

torch's index_select spreads a copy over its threads, which pays for large batches and costs more than it saves for
small ones: those are taken by NumPy, straight from the same memory.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

Columns = Tensor | tuple[Tensor, ...] | list[Tensor] | dict[str, Tensor]

SMALL_BYTES = 1 << 17


class Gather:
    """Called with rows (int64, shape (n,)), gives those rows of every column in the form that the columns have: n first
    in every shape, in newly allocated memory, so that a batch can be changed in place."""

    def __init__(self, columns: Columns) -> None:
        self._form = type(columns)
        if isinstance(columns, dict):
            self._names, self._columns = list(columns), [_Column(column) for column in columns.values()]
        else:
            self._columns = [_Column(column) for column in ([columns] if isinstance(columns, Tensor) else columns)]

    def __call__(self, rows: np.ndarray) -> Any:
        taken = [column.take(rows) for column in self._columns]
        if self._form is tuple:
            return tuple(taken)
        if self._form is list:
            return taken
        return dict(zip(self._names, taken, strict=True)) if self._form is dict else taken[0]


class _Column:
    def __init__(self, tensor: Tensor) -> None:
        self._tensor = tensor
        self._array = _as_array(tensor)
        self._small = SMALL_BYTES * len(tensor) // max(tensor.nbytes, 1)  # rows

    def take(self, rows: np.ndarray) -> Tensor:
        if self._array is not None and len(rows) <= self._small:
            return torch.from_numpy(self._array.take(rows, 0))
        return self._tensor.index_select(0, torch.tensor(rows, device=self._tensor.device))

    def __reduce__(self) -> Any:
        return _Column, (self._tensor,)  # a worker process is sent the memory once, not for either view of it


def _as_array(tensor: Tensor) -> np.ndarray | None:
    """The same memory as an array; None on a device, and for a type of numbers that NumPy lacks."""
    if not tensor.is_cpu:
        return None
    try:
        return tensor.detach().numpy()
    except TypeError:
        return None
