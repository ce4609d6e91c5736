"""Indices of a Subset or a sampler, checked to be whole numbers of samples that exist.

Many rows are gathered by one call, which would cut 2.9 to 2, and on an accelerator ends the process at an index that is
too large. So indices are checked once for a Subset and once an epoch for a sampler.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import index as whole_number
from typing import Any

import numpy as np
from torch import Tensor

from hasten.errors import DataFailed

MOST_LISTED = 16


def whole_numbers(given: Iterable[Any], *, whose: str) -> np.ndarray:
    """The indices: int64, shape (n,), in memory of their own.

    whose: who gives them, as an error begins: "a Subset", "the sampler, in epoch 3,".

    Raises DataFailed for one that is no whole number.
    """
    if isinstance(given, range):
        return np.arange(given.start, given.stop, given.step, dtype=np.int64)
    if isinstance(given, Tensor):
        given = given.numpy(force=True)
    if isinstance(given, np.ndarray) and given.ndim == 1 and given.dtype.kind == "i":
        return given.astype(np.int64)
    indices = [*given]
    try:
        if bool in set(map(type, indices)):  # Python counts with them
            raise TypeError("True and False are a mask")
        return np.fromiter(map(whole_number, indices), np.int64)
    except (TypeError, OverflowError) as error:
        fix = "let it give whole numbers only; put anything else that a sample depends on into the data set"
        raise DataFailed(f"{whose} gives something other than indices of samples: {error}", fix=fix) from error


def rows_of(given: Iterable[Any], count: int, *, whose: str) -> np.ndarray:
    """The indices as rows of `count`: int64, shape (n,), from 0 on. One below zero counts from the end, as in Python.
    Raises DataFailed for one that is no whole number, or has no row."""
    found = whole_numbers(given, whose=whose)
    if len(found) and (found.min() < -count or found.max() >= count):
        at = int(np.flatnonzero((found < -count) | (found >= count))[0])
        raise DataFailed(
            f"{whose} gives the index {found[at]} at position {at}, and there are {count} samples",
            fix=f"let it give indices from 0 to {count - 1}" if count else "look at the path of the data set",
        )
    found[found < 0] += count
    return found


def in_words(indices: Sequence[int]) -> str:
    """The samples of these indices: "sample 5", "samples 8 to 15", "samples 5, 17, 2 and 61 more"."""
    first, last = indices[0], indices[-1]
    if len(indices) == 1:
        return f"sample {first}"
    if len(indices) > 2 and [*indices] == [*range(first, last + 1)]:
        return f"samples {first} to {last}"
    shown = ", ".join(map(str, indices[:MOST_LISTED]))
    more = len(indices) - MOST_LISTED
    return f"samples {shown} and {more} more" if more > 0 else f"samples {shown}"
