"""A digest of a job's data, so that a job that builds other data when it is built again is noticed.

It reads no sample, which could change the data set. It takes the number of samples and, of the tensors, arrays and
lists of numbers that the data set and its sampler hold, evenly spaced rows. A map-style data set that holds no numbers
is known by its length, an iterable data set by its type.

A data set may store samples that it has read. So an object's digest is computed once, dictionaries do not count, and a
list counts only where it has numbers, texts, paths, or lists and dictionaries of them. Processors round differently:
of floating-point rows only the mean absolute value to three digits counts. Text does not count, because paths differ
from machine to machine.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import PurePath
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from hasten.data.sources.column_gather import parts_of
from hasten.data.sources.job_data import Source

_ROWS, _FLOATING_ROWS = 64, 8  # of each array or list
_VALUES = 64  # of each row
_DEEPEST = 8  # lists and data sets within each other
_LOOKS = 4096  # at values and rows of a data set, and of its sampler
_NUMBERS = "biufc"  # NumPy's kinds of dtypes
_KNOWN = WeakKeyDictionary[Any, list[str]]()  # by the data set: what it held when it was first asked
_PLAIN = (bool, int, float, np.number, np.bool, str, bytes, PurePath, list, tuple, dict, Dataset)


def data_digest(source: Source) -> str:
    """16 hexadecimal digits. source: as the job gives it, before a plan changes where its samples lie."""
    digest = hashlib.sha256()
    for line in (f"{source.count} samples", *_of_source(source, iter(range(_LOOKS)))):
        digest.update(line.encode() + b"\n")
    return digest.hexdigest()[:16]


def _of_source(source: Source, looks: Iterator[int]) -> Iterator[str]:
    """looks: one is taken for each value or row, until there are none."""
    if source.columns is not None:
        for column in parts_of(source.columns):
            yield from _of_array(column, range(len(column)) if source.rows is None else source.rows, looks)
    elif source.iterable:
        yield type(source.dataset).__name__
    elif isinstance(source.dataset, list | tuple):
        yield from _of_value(source.dataset, _DEEPEST, looks)
    else:
        yield from _held_at_first(source.dataset)
    if source.sampler is not None:
        yield from _held_by(source.sampler, _DEEPEST, iter(range(_LOOKS)))
    if source.batches is not None:
        for drawn in source.batches.drawn(0, 0):
            yield hashlib.sha256(drawn.tobytes()).hexdigest()


def _held_at_first(dataset: Any) -> list[str]:
    looks = iter(range(_LOOKS))
    try:
        found = _KNOWN.get(dataset)
        if found is None:
            found = _KNOWN[dataset] = [*_held_by(dataset, _DEEPEST, looks)]
        return found
    except TypeError:  # what compares by its content
        return [*_held_by(dataset, _DEEPEST, looks)]


def _held_by(holder: object, depth: int, looks: Iterator[int]) -> Iterator[str]:
    """Not single numbers: a data set may count in them what it has read."""
    for value in getattr(holder, "__dict__", {}).values():
        if isinstance(value, Tensor | np.ndarray | tuple | Dataset) or (isinstance(value, list) and _is_plain(value)):
            yield from _of_value(value, depth, looks)


def _is_plain(held: list[Any]) -> bool:
    """Whether a list holds labels or annotations and not stored samples, as far as some of its rows show."""
    return all(
        isinstance(row, _PLAIN) and all(each is None or isinstance(each, _PLAIN) for each in _entries(row))
        for row in (held[place] for place in _evenly(range(len(held)), _ROWS))
    )


def _entries(row: Any) -> list[Any]:
    if isinstance(row, dict):
        return [*islice(row.values(), _ROWS)]
    return [row[place] for place in _evenly(range(len(row)), _ROWS)] if isinstance(row, list | tuple) else []


def _of_value(value: Any, depth: int, looks: Iterator[int]) -> Iterator[str]:
    if next(looks, None) is None:
        return
    if isinstance(value, Tensor | np.ndarray):
        yield from _of_array(value, range(len(value) if value.ndim else 0), looks)
    elif isinstance(value, bool | int | float | np.number | np.bool):
        yield _of_row(np.asarray(value))
    elif depth and isinstance(value, list | tuple | dict):
        for each in _entries(value):
            yield from _of_value(each, depth - 1, looks)
    elif depth and isinstance(value, Dataset):
        yield from _held_by(value, depth - 1, looks)


def _of_array(array: Tensor | np.ndarray, rows: Sequence[int] | np.ndarray, looks: Iterator[int]) -> Iterator[str]:
    """rows: those of its first dimension that are data."""
    yield f"{tuple(array.shape[1:])} {array.dtype}"
    if not _has_rows_of_numbers(array):
        return
    floating = array.dtype.kind in "fc" if isinstance(array, np.ndarray) else _is_floating(array)
    for row, _ in zip(_evenly(rows, _FLOATING_ROWS if floating else _ROWS), looks, strict=False):
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
