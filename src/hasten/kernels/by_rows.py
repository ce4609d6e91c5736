"""What forms in Triton that take whole rows share: which rows they take, and how a grid is laid over them.

Forward, a program of the grid takes one row, in one block of the next power of two, and so reads it from memory once.
Backward, a program walks over every 256th row and sums what the rows add to the gradients of parameters in float32, in
a row of a buffer that is its own. The buffer is summed after that. How many programs there are follows from the shape
alone, and none waits for another; so the numbers are the same whatever order they run in, as they would not be with
atomic additions.

Source: the tutorial "Layer Normalization" in Triton's documentation, for a second step that sums over parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from hasten.kernels.accelerated import InTriton

_WIDEST = 65536  # of a row in one block: 64 numbers to each of 1024 threads
_PARTS = 256  # two for each multiprocessor of a large card; the buffer is then small beside the rows


def taking_rows(form: InTriton, rows: Sequence[Tensor], parameters: Sequence[Tensor | None]) -> ModuleType | None:
    """The form's module, where it takes rows of this width, all in one format, and parameters in that or in float32."""
    first = rows[0]
    known = all(each is None or each.dtype in (first.dtype, torch.float32) for each in parameters)
    return form.taking(*rows) if known and 0 < first.shape[-1] <= _WIDEST else None


def parts_of(rows: int) -> int:
    return min(_PARTS, rows)


def launch(kernel: Any, programs: int, width: int, *given: Tensor | int | float | None) -> None:
    """Run so many programs of a kernel of Triton's; it is given these and, as the last, how wide a block is."""
    if not programs:  # a grid of none is refused
        return
    block = block_of(width)
    first = next(each for each in given if isinstance(each, Tensor))
    with torch.cuda.device_of(first):
        # Triton 3.9 warns of whoever does not say whether products and sums are to be fused.
        kernel[(programs,)](*given, block=block, num_warps=warps_of(block), enable_fp_fusion=True)


def block_of(width: int) -> int:
    """The next power of two."""
    return 1 << (width - 1).bit_length()


def warps_of(block: int) -> int:
    """Of 32 threads, each with eight numbers of the row or more: 16 bytes of a 16-bit format."""
    return min(32, max(1, block // 256))


def room_for(parameter: Tensor | None, parts: int) -> Tensor | None:
    """Where each part sums a parameter's gradient; None where there is no parameter."""
    return None if parameter is None else parameter.new_empty((parts, *parameter.shape), dtype=torch.float32)


def sum_of(room: Tensor | None) -> Tensor | None:
    return None if room is None else room.sum(0)
