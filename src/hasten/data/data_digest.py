"""A digest of a job's data, so that a job that builds other data when it is built again is noticed.

It reads no sample: that could be slow, and could change the data set. It takes the number of samples and, of the
tensors, arrays and lists of numbers that the data set and its sampler hold, evenly spaced rows. A map-style data set
that holds no numbers is known by its length, an iterable data set by its type.

Processors round differently, and a run may be resumed on another one. So of floating-point rows, and of few of them,
only the mean absolute value to three digits counts: another random draw changes it by far more. Whole numbers count
exactly. Text is left out, because paths may differ from machine to machine.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from hasten.data.gather import parts_of
from hasten.data.sources import Source

_ROWS, _FLOATING_ROWS = 64, 8  # of each array or list
_VALUES = 64  # of each row
_DEEPEST = 8  # lists and data sets within each other
_NUMBERS = "biufc"  # NumPy's kinds of dtypes


def data_digest(source: Source) -> str:
    """16 hexadecimal digits. source: as the job gives it, before a plan changes where its samples lie."""
    digest = hashlib.sha256()
    for line in (f"{source.count} samples", *_of_source(source)):
        digest.update(line.encode() + b"\n")
    return digest.hexdigest()[:16]


def _of_source(source: Source) -> Iterator[str]:
    if source.columns is not None:
        for column in parts_of(source.columns):
            yield from _of_array(column, range(len(column)) if source.rows is None else source.rows)
    elif source.iterable:
        yield type(source.dataset).__name__
    elif isinstance(source.dataset, list | tuple):
        yield from _of_value(source.dataset, _DEEPEST)
    else:
        yield from _held_by(source.dataset, _DEEPEST)
    if source.sampler is not None:
        yield from _held_by(source.sampler, _DEEPEST)


def _held_by(holder: object, depth: int) -> Iterator[str]:
    """Not single numbers: a data set may count in them what it has read."""
    for value in getattr(holder, "__dict__", {}).values():
        if isinstance(value, Tensor | np.ndarray | list | tuple | dict | Dataset):
            yield from _of_value(value, depth)


def _of_value(value: Any, depth: int) -> Iterator[str]:
    if isinstance(value, Tensor | np.ndarray):
        yield from _of_array(value, range(len(value) if value.ndim else 0))
    elif isinstance(value, bool | int | float | np.number | np.bool):
        yield _of_row(np.asarray(value))
    elif depth and isinstance(value, list | tuple):
        yield f"{len(value)}"
        for row in _evenly(range(len(value)), _ROWS):
            yield from _of_value(value[row], depth - 1)
    elif depth and isinstance(value, dict):
        yield f"{len(value)}"
        for each in islice(value.values(), _ROWS):
            yield from _of_value(each, depth - 1)
    elif depth and isinstance(value, Dataset):
        yield from _held_by(value, depth - 1)


def _of_array(array: Tensor | np.ndarray, rows: Sequence[int] | np.ndarray) -> Iterator[str]:
    """rows: those of its first dimension that are data."""
    yield f"{tuple(array.shape[1:])} {array.dtype}"
    if not _has_rows_of_numbers(array):
        return
    floating = array.dtype.kind in "fc" if isinstance(array, np.ndarray) else _is_floating(array)
    for row in _evenly(rows, _FLOATING_ROWS if floating else _ROWS):
        yield _of_row(array[row])


def _of_row(row: Any) -> str:
    values = row.reshape(-1)[:_VALUES]
    if isinstance(values, Tensor):
        values = values.detach().cpu()
        values = (values.abs().double() if _is_floating(values) else values).numpy()
    if values.dtype.kind in "fc" and values.size:
        return f"{float(np.abs(values).mean(dtype=np.float64)):.3g}"
    return str(values.tolist())


def _has_rows_of_numbers(array: Tensor | np.ndarray) -> bool:
    if isinstance(array, np.ndarray):
        return array.dtype.kind in _NUMBERS
    return array.layout is torch.strided and not array.is_meta and not array.is_quantized


def _is_floating(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def _evenly(rows: Sequence[int] | np.ndarray, most: int) -> list[int]:
    """The first, the last and some between them."""
    places = np.linspace(0, len(rows) - 1, min(most, len(rows))).astype(int)
    return [int(rows[place]) for place in places]
