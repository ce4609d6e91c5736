"""Memory of batches that nobody holds any more, given out again.

A batch of pictures is tens of megabytes. Asked for anew each time, it comes from the kernel as pages that must be
cleared one by one on first touch.

A piece is free when the recycler's own reference to its NumPy array is the last one: a tensor made from an array holds
it for as long as any view of the tensor lives, whoever has it. So a batch that is kept is never written to again.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from threading import Lock

import numpy as np
import torch
from torch import Tensor

ALIGNMENT = 64  # bytes: what torch's own allocator gives, and what whole cache lines are written to


def _references(pieces: Sequence[np.ndarray]) -> list[int]:
    return [sys.getrefcount(piece) for piece in pieces]


(_UNHELD,) = _references([np.empty(0)])  # what counts one that only its list holds depends on the Python version


def _within(piece: np.ndarray, size: int, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """A tensor in a piece of memory, which holds it through a view."""
    start = -piece.ctypes.data % ALIGNMENT
    return torch.from_numpy(piece[start : start + size]).view(dtype).view(shape)


class Recycler:
    """Gives out tensors; safe to share between threads. Copied or sent to another process, it begins there empty."""

    def __init__(self) -> None:
        self._pieces, self._lock = list[np.ndarray](), Lock()

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """A tensor on the host, its content undefined."""
        with self._lock:
            size = math.prod(shape) * dtype.itemsize
            held = [count > _UNHELD for count in _references(self._pieces)]
            for number, piece in enumerate(self._pieces):
                if not held[number] and len(piece) >= size + ALIGNMENT:
                    return _within(piece, size, shape, dtype)
            # Free and too small: let go, or what an odd batch needed would stay for ever.
            self._pieces = [piece for number, piece in enumerate(self._pieces) if held[number]]
            # NumPy asks the kernel for large pages, torch does not.
            self._pieces.append(np.empty(size + ALIGNMENT, dtype=np.uint8))
            return _within(self._pieces[-1], size, shape, dtype)

    def __reduce__(self) -> tuple[type[Recycler], tuple[()]]:
        return (Recycler, ())
