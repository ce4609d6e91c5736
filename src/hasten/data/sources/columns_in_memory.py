"""All samples of a data set as columns in memory, so that a batch is a gather by index.

A steady data set of samples of one shape is read once, and its samples become rows of one tensor for each part: the
tensors that collation would make of them. After that no code of the data set runs. Only a share of the memory is taken.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import default_collate

from hasten.data.cache.repeated_reading import SteadyReader
from hasten.data.order.randomness import undisturbed
from hasten.data.sources.column_gather import Columns, formed, names_of, parts_of
from hasten.errors import DataFailed, OutOfMemory
from hasten.facts.formatting import byte_size

HOST_SHARE, DEVICE_SHARE = 0.5, 0.25  # of what is free on the host, of all that the device has

PROGRESS_EVERY = 1000  # samples
_WITHOUT = "remove in_memory from the plan"

Progress = Callable[[int, int], None]


def too_large(needed: int, there: int, share: float, whose: str) -> str | None:
    """Why so many bytes cannot be held, with the numbers; None when they can."""
    if needed <= there * share:
        return None
    return (
        f"all samples take {byte_size(needed)}, and the share of {whose} that they may take is "
        f"{share:g} × {byte_size(there)} = {byte_size(int(there * share))}"
    )


def rank_share(there: int, ranks: int, share: float, whose: str) -> tuple[int, float, str]:
    """`there`, `share` and `whose` for one of the ranks that divide a memory: each holds columns of its own."""
    return there // ranks, share, whose if ranks == 1 else f"{whose} for each of {ranks} ranks"


def check_fits(needed: int, there: int, share: float, whose: str) -> None:
    """Raises OutOfMemory."""
    if (why := too_large(needed, there, share, whose)) is not None:
        raise OutOfMemory(why, where="in_memory", fix="remove in_memory from the plan, or give it a larger share")


def bytes_of(columns: Columns) -> int:
    return sum(column.nbytes for column in each_of(columns))


def each_of(columns: Any) -> list[Tensor]:
    """The tensors of columns, or of a batch in one of their forms; empty for a batch that holds anything else."""
    parts: Any = [*columns.values()] if type(columns) is dict else columns
    # Exact types: what another kind of list would be made of is for its own class to know.
    parts = parts if type(parts) in (list, tuple) or hasattr(parts, "_make") else [parts]
    return [*parts] if parts and all(type(part) is Tensor for part in parts) else []


def read_columns(dataset: Any, check: Callable[[int], None], progress: Progress) -> Columns:
    """Every sample of a steady map-style data set, collated: tensors of shape (samples, …).

    check: called with the bytes that all of it will take, before they are taken; raises when that is too much.
    progress: called with samples done and in all.

    Raises DataFailed, naming the sample, when it is not steady, or is not like the first one; and Unreadable.
    """
    with undisturbed():
        reader = SteadyReader(dataset, stored_as=lambda index, sample: each_of(_row(index, sample)))
        first = _row(0, reader.read(0))
        rows = each_of(first)
        check(sum(row.nbytes for row in rows) * len(dataset))
        reader.check_spread()
        columns = [torch.empty((len(dataset), *row.shape[1:]), dtype=row.dtype) for row in rows]
        form, count = [(column.dtype, column.shape[1:]) for column in columns], len(dataset)
        for index in range(count):
            row = each_of(_row(index, reader.read(index)))
            if [(part.dtype, part.shape[1:]) for part in row] != form:
                what = f"sample {index} has different shapes or types than sample 0, so they cannot share a column"
                raise DataFailed(what, fix=_WITHOUT)
            for column, part in zip(columns, row, strict=True):
                column[index] = part[0]
            if index % PROGRESS_EVERY == PROGRESS_EVERY - 1 or index == count - 1:
                progress(index + 1, count)
    return formed(type(first), names_of(first), columns)


def columns_on(columns: Columns, device: torch.device) -> Columns:
    """The same columns on a device."""
    return formed(type(columns), names_of(columns), [column.to(device) for column in parts_of(columns)])


def _row(index: int, sample: Any) -> Any:
    """One sample as a batch of one."""
    try:
        row = default_collate([sample])
    except (TypeError, RuntimeError) as error:
        raise DataFailed(f"sample {index} cannot become a batch: {error}", fix=_WITHOUT) from None
    if not each_of(row):
        what = f"sample {index} holds something other than numbers, arrays and tensors in a tuple, list or dictionary"
        raise DataFailed(what, fix=_WITHOUT)
    return row
