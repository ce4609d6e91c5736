"""Whether one tensor can take the content of another in as it is."""

from __future__ import annotations

import torch
from torch import Tensor


def have_same_form(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and one.dtype == other.dtype


def is_expanded(tensor: Tensor) -> bool:
    """Whether several of its elements are one: nothing can be written into it."""
    if tensor.layout is not torch.strided:
        return False
    return any(stride == 0 and size > 1 for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
