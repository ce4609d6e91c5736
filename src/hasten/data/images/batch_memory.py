"""Memory of batches that are no longer in use, used again: new memory comes as pages that the kernel clears one by one.

A piece is free when the reference of BatchMemory to its NumPy array is the last one: a tensor made from an array refers
to it for as long as any view of the tensor exists. So a batch that somebody still has is never written to.
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


(_UNHELD,) = _references([np.empty(0)])  # of one that only its list holds; it depends on the Python version


def _within(piece: np.ndarray, size: int, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """A tensor in a piece of memory, which holds it through a view."""
    start = -piece.ctypes.data % ALIGNMENT
    return torch.from_numpy(piece[start : start + size]).view(dtype).view(shape)


class BatchMemory:
    """Allocates tensors; safe to share between threads. Copied or sent to another process, it begins there empty."""

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
            # Free and too small: released, or the memory of one odd batch would stay for ever.
            self._pieces = [piece for number, piece in enumerate(self._pieces) if held[number]]
            # NumPy asks the kernel for large pages, torch does not.
            self._pieces.append(np.empty(size + ALIGNMENT, dtype=np.uint8))
            return _within(self._pieces[-1], size, shape, dtype)

    def __reduce__(self) -> tuple[type[BatchMemory], tuple[()]]:
        return (BatchMemory, ())
