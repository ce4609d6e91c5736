"""Whether one tensor can take the content of another in as it is."""

from __future__ import annotations

from torch import Tensor


def have_same_form(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and one.dtype == other.dtype
