"""The parts of uniform samples as columns in the memory map, so that batches are gathered without Python per sample.

Records of one size lie at equal distances, so every part of them is a column already: an array whose first stride is
the record's size. Nothing is copied, and nothing is read before it is asked for.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from hasten.data.cache_samples import Form
from hasten.data.cache_unpacker import assembler, end_of, ends_of, numpy_dtype

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
