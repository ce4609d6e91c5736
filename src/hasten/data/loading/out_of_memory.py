"""Telling an exhausted memory from every other failure, on every device."""

from __future__ import annotations

import errno

import torch

# torch raises a plain RuntimeError when the host allocator fails; only the text tells it apart.
_HOST_ALLOCATOR = (
    "can't allocate memory",
    "not enough memory",
    "DefaultCPUAllocator",
    "Cannot allocate memory",
    "std::bad_alloc",
)


def is_out_of_memory(error: BaseException) -> bool:
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    return isinstance(error, RuntimeError) and any(text in str(error) for text in _HOST_ALLOCATOR)
