"""Named tensors in one file, exactly as they are: their format, shape and every bit, in safetensors."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import safetensors
import safetensors.torch
from torch import Tensor

from hasten.checkpoint.files import write_atomically
from hasten.errors import StorageFailed


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Raises StorageFailed. A tensor that is not contiguous is stored as if it were."""
    whole = {name: each.detach().cpu().contiguous() for name, each in tensors.items()}
    write_atomically(path, safetensors.torch.save(whole))


def read_tensors(path: Path) -> dict[str, Tensor]:
    """On the CPU. Raises StorageFailed."""
    try:
        return safetensors.torch.load_file(path)
    except (OSError, safetensors.SafetensorError) as error:
        fix = "check the disk, then run it again"
        raise StorageFailed(f"could not be read: {error}", where=str(path), fix=fix) from error
