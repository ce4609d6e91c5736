"""The settings of torch's allocator, changed after torch was imported. Checked on torch 2.9 to 2.13."""

from __future__ import annotations

from collections.abc import Callable

import torch


def allocator_setter() -> Callable[[str], None] | None:
    """Since torch 2.10 under the first name; before under the second, and only in builds with CUDA."""
    names = ("_accelerator_setAllocatorSettings", "_cuda_cudaCachingAllocator_set_allocator_settings")
    return next((getattr(torch._C, name) for name in names if hasattr(torch._C, name)), None)


def allocator_settings() -> str | None:
    """The present settings; None where torch cannot return them, as before torch 2.12."""
    read = getattr(torch._C, "_accelerator_getAllocatorSettings", None)
    return None if read is None else read()
