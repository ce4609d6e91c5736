"""The parts of uniform samples as columns in the memory map, so that batches are gathered without Python per sample.

Records of one size lie at equal distances, so every part of them is a column already: an array whose first stride is
the record's size. Nothing is copied.

Gathering does not come by single samples, where each could be checked when it is first read, so all of them are checked
before columns are given out. Each has a checksum of its own, so this is not one operation on many of them; but no line
of Python runs for each either.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from zlib import crc32

import numpy as np
import torch

from hasten.data.cache.cache_unpacker import assembler, end_of, ends_of, numpy_dtype
from hasten.data.cache.sample_format import Form

BLOCK = 1 << 24  # bytes that are checked in one go
_NUMBERS = {"int": np.dtype(np.int64), "float": np.dtype(np.float64), "bool": np.dtype(np.bool_)}


def columns_in(form: Form, numbers: list[int], data: np.ndarray, samples: int) -> Any:
    """One array of shape (samples, …) for each part, in the form of a sample; None where that cannot be.

    numbers: of every sample alike. data: uint8, all records one after another.
    """
    if form[0] in ("tuple", "list", "dict"):
        inner = [part for _, part in form[1]] if form[0] == "dict" else form[1]
        if not inner or any(part[0] in ("tuple", "list", "dict") for part in inner):
            return None
    at = start = 0
    columns: list[np.ndarray] = []
    for end in ends_of(form):
        known = end_of(end, at)
        own = numbers[at : at + known.numbers]
        row = _row(end, own)
        if row is None:
            return None
        dtype, shape, strides = row
        columns.append(np.ndarray((samples, *shape), dtype, data, start, (len(data) // samples, *strides)))
        at += len(own)
        start += known.taken(numbers)
    return assembler(form)(iter(columns))


def first_damaged(
    index: np.ndarray, data: np.ndarray, salt: int, checked: np.ndarray, progress: Callable[[int, int], None]
) -> int | None:
    """The number of the first of uniform samples that is not as it was written; None when all of them are.

    index: int64, shape (samples, numbers), the CRC-32 of each sample first. It covers the other numbers and the values,
        and begins at salt plus the sample's number.
    data: uint8, all records one after another.
    checked: bool, shape (samples,): those that are known to be whole; marked here. Blocks of them are passed over.
    progress: called with samples done and in all.
    """
    samples = len(index)
    values = data[: len(data) // samples * samples].reshape(samples, -1)
    step = max(1, BLOCK // (values.shape[1] + index[0].nbytes))
    for first in range(0, samples, step):
        block = slice(first, min(first + step, samples))
        if not checked[block].all():
            begins = range(salt + block.start, salt + block.stop)
            after_rows = map(crc32, np.ascontiguousarray(index[block, 1:]), begins)
            found = np.fromiter(map(crc32, values[block], after_rows), np.int64, len(begins))
            wrong = np.flatnonzero(found != index[block, 0])
            if len(wrong):
                return first + int(wrong[0])
            checked[block] = True
        progress(block.stop, samples)
    return None


def _row(end: Form, own: list[int]) -> tuple[np.dtype, tuple[int, ...], tuple[int, ...]] | None:
    """Dtype, shape and strides (bytes) of one sample's part; None for what is no row of numbers in the usual layout."""
    kind = end[0]
    if kind in _NUMBERS:
        return _NUMBERS[kind], (), ()
    if kind == "scalar":
        return np.dtype(end[1]), (), ()
    if kind not in ("tensor", "array"):
        return None
    dtype = numpy_dtype(getattr(torch, end[1])) if kind == "tensor" else np.dtype(end[1])
    if dtype is None:
        return None
    shape, unit = tuple(own[: end[2]]), dtype.itemsize if kind == "tensor" else 1
    strides = tuple(stride * unit for stride in own[end[2] :])
    usual = np.ndarray(shape, dtype, np.empty(0, np.uint8) if 0 in shape else None).strides
    if any(size > 1 and found != wanted for size, found, wanted in zip(shape, strides, usual, strict=True)):
        return None  # batches of such samples may be laid out otherwise in memory than gathered rows are
    return dtype, shape, usual
