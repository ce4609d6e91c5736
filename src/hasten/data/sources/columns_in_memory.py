"""All samples of a data set as columns in memory, so that a batch is a gather by index.

A steady data set of samples that are alike (rows of numbers, small pictures and their labels) is read once, and its
samples become rows of one tensor for each part: the very tensors that collation would make of them. After that no code
of the data set runs any more. On an accelerator the columns can lie in its memory, and a batch never crosses the bus.

What it gave up: memory for all of it at once. So it is asked for beforehand, and only a share of what is there is
taken: the model, its gradients and its activations come later and have nowhere else to go.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import default_collate

from hasten.data.cache.repeated_reading import SteadyReader
from hasten.data.order.randomness import undisturbed
from hasten.data.sources.column_gather import Columns, formed, names_of, parts_of
from hasten.errors import DataFailed, OutOfMemory
from hasten.facts.formatting import byte_size

HOST_SHARE, DEVICE_SHARE = 0.5, 0.25  # of what is free on the host, of all that the device has

TOLD_EVERY = 1000  # samples

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
        raise OutOfMemory(why, where="in_memory", fix="leave in_memory out of the plan, or give it a larger share")


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
    with undisturbed(), _or_left_out():
        reader = SteadyReader(dataset, kept_as=lambda index, sample: each_of(_row(index, sample)))
        first = _row(0, reader.read(0))
        rows = each_of(first)
        check(sum(row.nbytes for row in rows) * len(dataset))
        reader.prove_spread()
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
        if index % TOLD_EVERY == TOLD_EVERY - 1 or index == count - 1:
            progress(index + 1, count)


@contextmanager
def _or_left_out() -> Iterator[None]:
    """Says of whatever keeps samples from becoming columns that they can be read without."""
    try:
        yield
    except DataFailed as error:
        fixes = [error.fix] if error.fix else []
        raise DataFailed(
            error.what, where=error.where, fix="; or ".join([*fixes, "leave in_memory out of the plan"])
        ) from error.__cause__


def as_collated(columns: Any) -> Columns:
    """Read-only columns of samples (see Cached.columns) as collation gives them: tensors, and a list for a tuple.

    Rows are only ever copied out of them, so that nothing writes to their memory.
    """
    if isinstance(columns, dict):
        return {name: _tensor(column) for name, column in columns.items()}
    return [_tensor(column) for column in columns] if isinstance(columns, tuple | list) else _tensor(columns)


def moved(columns: Columns, device: torch.device) -> Columns:
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


def _tensor(column: np.ndarray) -> Tensor:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(column)
