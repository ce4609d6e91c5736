"""Weights as a file of their own. A run leaves one and an export makes one: of the same weights, byte for byte the
same."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import safetensors.torch
from torch import Tensor


def as_file(weights: Mapping[str, Any]) -> bytes:
    """The content of a safetensors file with the tensors among the weights; the format has no place for what else a
    module keeps. No two of them may share memory, and each must be contiguous."""
    tensors = {name: each for name, each in weights.items() if isinstance(each, Tensor)}
    return safetensors.torch.save(tensors, metadata={"format": "pt"})
