"""All samples of a data set as columns in memory, so that a batch is a gather by index.

A steady data set of samples of one shape (rows of numbers, small images and their labels) is read once, and its samples
become rows of one tensor for each part: the tensors that collation would make of them. After that no code of the data
set runs. On an accelerator the columns can lie in its memory, and a batch never crosses the bus.

The cost is memory for all of it at once. So the size is checked first, and only a share of the memory is taken: the
model, its gradients and its activations need the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
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
    why = too_large(needed, there, share, whose)
    if why is not None:
        raise OutOfMemory(why, where="in_memory", fix="remove in_memory from the plan, or give it a larger share")


def bytes_of(columns: Columns) -> int:
    return sum(column.nbytes for column in each_of(columns))


def each_of(columns: Any) -> list[Tensor]:
    """The tensors of columns, or of a batch in one of their forms; empty for a batch that holds anything else."""
    parts: Any = [*columns.values()] if type(columns) is dict else columns
    # Exact types: what another kind of list would be made of is for its own class to know.
    parts = parts if type(parts) in (list, tuple) or hasattr(parts, "_make") else [parts]
    return [*parts] if parts and all(type(part) is Tensor for part in parts) else []


def read_columns(dataset: Any, check: Callable[[int], None], progress: Progress | None = None) -> Columns:
    """Every sample of a steady map-style data set, collated: tensors of shape (samples, …).

    check: called with the bytes that all of it will take, before they are taken; raises when that is too much.
    progress: called with samples done and in all.

    Raises DataFailed, naming the sample, when it is not steady, or is not like the first one; and Unreadable.
    """
    with undisturbed(), _with_advice():
        reader = SteadyReader(dataset, stored_as=lambda index, sample: each_of(_row(index, sample)))
        first = _row(0, reader.read(0))
        rows = each_of(first)
        check(sum(row.nbytes for row in rows) * len(dataset))
        reader.check_spread()
        columns = [torch.empty((len(dataset), *row.shape[1:]), dtype=row.dtype) for row in rows]
        _fill(columns, reader, progress or (lambda done, samples: None))
    return formed(type(first), names_of(first), columns)


def _fill(columns: list[Tensor], reader: SteadyReader, progress: Progress) -> None:
    form, count = [(column.dtype, column.shape[1:]) for column in columns], len(reader.dataset)
    for index in range(count):
        row = each_of(_row(index, reader.read(index)))
        if [(part.dtype, part.shape[1:]) for part in row] != form:
            raise DataFailed(
                f"sample {index} has other shapes or types than sample 0, so they cannot lie in one column"
            )
        for column, part in zip(columns, row, strict=True):
            column[index] = part[0]
        if index % PROGRESS_EVERY == PROGRESS_EVERY - 1 or index == count - 1:
            progress(index + 1, count)


@contextmanager
def _with_advice() -> Iterator[None]:
    """An error says that the samples can be read without columns."""
    try:
        yield
    except DataFailed as error:
        fixes = [error.fix] if error.fix else []
        raise DataFailed(
            error.what, where=error.where, fix="; or ".join([*fixes, "remove in_memory from the plan"])
        ) from error.__cause__


def columns_on(columns: Columns, device: torch.device) -> Columns:
    """The same columns on a device."""
    return formed(type(columns), names_of(columns), [column.to(device) for column in parts_of(columns)])


def _row(index: int, sample: Any) -> Any:
    """One sample as a batch of one."""
    try:
        row = default_collate([sample])
    except (TypeError, RuntimeError) as error:
        raise DataFailed(f"sample {index} cannot become a batch: {error}") from None
    if not each_of(row):
        raise DataFailed(
            f"sample {index} is not made of numbers, arrays and tensors alone, or they are nested, or lie in a list or "
            "dictionary of a class of its own"
        )
    return row
