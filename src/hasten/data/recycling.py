"""Memory of batches that nobody holds any more, given out again.

A batch of pictures is tens of megabytes. Asked for anew each time, it comes from the kernel as pages that must be
cleared one by one on first touch, which costs a tenth of what decoding the pictures does.

A piece is free when the recycler's own reference to its NumPy array is the last one: a tensor made from an array holds
it for as long as any view of the tensor lives, whoever has it. So a batch that is kept is never written to again.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from threading import Lock

import numpy as np
import torch
from torch import Tensor

_DTYPES = {torch.float32: np.float32, torch.uint8: np.uint8}


def _references(pieces: Sequence[np.ndarray]) -> list[int]:
    return [sys.getrefcount(piece) for piece in pieces]


(_UNHELD,) = _references([np.empty(0)])  # what counts one that only its list holds depends on the Python version


class Recycler:
    """Gives out tensors; safe to share between threads. Copied or sent to another process, it begins there empty."""

    def __init__(self) -> None:
        self._pieces, self._lock = list[np.ndarray](), Lock()

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """A tensor on the host, float32 or uint8, its content undefined."""
        with self._lock:
            held = [count > _UNHELD for count in _references(self._pieces)]
            for number, piece in enumerate(self._pieces):
                if not held[number] and piece.shape == shape and piece.dtype == _DTYPES[dtype]:
                    return torch.from_numpy(piece)
            # One of another shape is let go: the memory of an epoch's last batch must not stay for ever.
            self._pieces = [piece for number, piece in enumerate(self._pieces) if held[number]]
            made = np.empty(shape, dtype=_DTYPES[dtype])  # NumPy asks the kernel for large pages, torch does not
            self._pieces.append(made)
            return torch.from_numpy(made)

    def __reduce__(self) -> tuple[type[Recycler], tuple[()]]:
        return (Recycler, ())
