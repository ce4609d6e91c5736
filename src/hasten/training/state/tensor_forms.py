"""What form a tensor has and where it lies."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def have_same_form(one: Tensor, other: Tensor) -> bool:
    return (one.shape, one.dtype) == (other.shape, other.dtype)


def place_in_memory(tensor: Tensor) -> tuple[Any, ...] | None:
    """Where a tensor lies, and as what; None for one without dense memory of its own, such as a sparse or a meta
    tensor."""
    if tensor.layout is not torch.strided or tensor.is_nested:
        return None
    if isinstance(own := getattr(tensor, "_local_tensor", None), Tensor):  # a part; by its storage, as it may be empty
        return own.untyped_storage()._cdata, own.storage_offset(), tensor.dtype, tensor.shape, tensor.stride()
    begin = tensor.data_ptr()
    if tensor.numel() and not begin:
        return None
    return begin, tensor.dtype, tensor.shape, tensor.stride()


def is_expanded(tensor: Tensor) -> bool:
    """Whether several of its elements are one: nothing can be written into it."""
    if tensor.layout is not torch.strided:
        return False
    return any(stride == 0 and size > 1 for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
