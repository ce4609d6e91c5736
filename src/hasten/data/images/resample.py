"""A batch of pictures of many sizes, resized together on the device where they are.

The filter is that of kernels/resampling/resized_crop.py, which resizes pictures on the host, but for the rounding in
between: two batched matrix products, rows and columns, so that it is one launch however many sizes there are.

Source: torch.nn.functional.interpolate with antialias=True.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor


def resize_together(canvas: Tensor, sides: Tensor, mirrored: Tensor, size: int) -> Tensor:
    """float32 (N, 3, size, size), 0 to 255, of a batch of pictures on the device where they are.

    canvas: uint8 (N, H, W, 3), each picture in the corner at the top and left; what lies beside it does not count.
    sides: (N, 2), height and width of each. mirrored: bool (N,).
    """
    rows = _weights(sides[:, 0], size, canvas.shape[1])
    columns = _weights(sides[:, 1], size, canvas.shape[2])
    columns = torch.where(mirrored[:, None, None], columns.flip(1), columns)
    pixels = canvas.permute(0, 3, 1, 2).float()
    return rows[:, None] @ pixels @ columns[:, None].transpose(2, 3)


def _weights(lengths: Tensor, size: int, most: int) -> Tensor:
    """How much each of `most` pixels of a line counts for each of `size` new ones: float32 (N, size, most)."""
    scale = (lengths.float() / size)[:, None, None]
    support = scale.clamp(min=1.0)
    new = torch.arange(size, device=lengths.device, dtype=torch.float32)[None, :, None]
    old = torch.arange(most, device=lengths.device, dtype=torch.float32)[None, None, :]
    weights = (1 - ((old + 0.5 - (new + 0.5) * scale) / support).abs()).clamp(min=0.0)
    weights = torch.where(old < lengths[:, None, None], weights, 0.0)
    return weights / weights.sum(dim=2, keepdim=True)


def crops_on_canvas(parts: Sequence[np.ndarray]) -> tuple[Tensor, Tensor]:
    """Canvas and sides, as resize_together takes them, of pictures (uint8, (H, W, 3)) of any size."""
    sides = torch.tensor([part.shape[:2] for part in parts])
    height, width = sides.amax(dim=0).tolist()
    canvas = np.empty((len(parts), height, width, 3), dtype=np.uint8)  # what lies beside a picture stays as it comes
    for place, part in zip(canvas, parts, strict=True):
        place[: part.shape[0], : part.shape[1]] = part
    return torch.from_numpy(canvas), sides
