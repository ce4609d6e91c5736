"""Tensors as a safetensors file of their own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
from torch import Tensor

from hasten.checkpoint.files import write_atomically
from hasten.errors import StorageFailed
from hasten.regular_files import check_regular


def as_file(weights: Mapping[str, Any]) -> bytes:
    """The tensors among the weights as the content of a safetensors file; other values of a module are not written.

    The tensors are contiguous, and no two of them share memory.
    """
    tensors = {name: each for name, each in weights.items() if isinstance(each, Tensor)}
    return safetensors.torch.save(tensors, metadata={"format": "pt"})


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write the tensors bit for bit, with dtype and shape. Raises StorageFailed."""
    whole = {name: each.detach().cpu().contiguous() for name, each in tensors.items()}
    write_atomically(path, safetensors.torch.save(whole))


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a file, on the CPU. Raises StorageFailed."""
    try:
        check_regular(path)
        return safetensors.torch.load_file(path)
    except (OSError, safetensors.SafetensorError) as error:
        fix = "check the disk, then run it again"
        raise StorageFailed(f"could not be read: {error}", where=str(path), fix=fix) from error
