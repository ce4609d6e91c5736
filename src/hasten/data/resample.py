"""Bring part of a picture to the size that a network takes: on the host one at a time, on a device a batch at once.

Both are the same filter: bilinear, widened by the factor by which the part shrinks, so that every pixel of it counts
("antialias", which is what Pillow's BILINEAR does). Without the widening, fine patterns turn into coarse ones.

The host uses torch's kernel for uint8, which rounds to whole numbers as Pillow does; it is written to a place that is
given, because asking for new memory for every picture costs half as much again. Views are made by NumPy: every call of
torch's, even for a view, lets another thread have the interpreter, and waits until it gets it back. On a device, the
filter is two batched matrix products, rows and columns: one launch for pictures of many sizes, and no rounding in
between.

Source: torch.nn.functional.interpolate with antialias=True; Pillow's Resample.c.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from hasten.data.crops import Box

_RESIZE = torch.ops.aten._upsample_bilinear2d_aa.out  # what interpolate calls; only this form writes where it is told


def resize_into(out: Tensor, picture: np.ndarray, box: Box) -> None:
    """Fill `out` (uint8, (3, size, size), channels last in memory) with the box of a picture (uint8, (H, W, 3))."""
    shown = resized(out[None], picture, box)
    if box.mirrored:
        out.copy_(shown[0])


def resized(scratch: Tensor, picture: np.ndarray, box: Box) -> Tensor:
    """The same as a batch of one: in `scratch` (uint8, (1, 3, size, size)), or mirrored in memory of its own."""
    part = picture[box.top : box.top + box.height, box.left : box.left + box.width]
    if not part.flags.writeable:
        part = _unmarked(part)
    whole = torch.from_numpy(part.transpose(2, 0, 1)[None])
    _RESIZE(whole, scratch.shape[2:], False, None, None, out=scratch)
    return scratch.flip(-1) if box.mirrored else scratch


def _unmarked(part: np.ndarray) -> np.ndarray:
    """Memory that is marked as read-only as torch takes it, which has no such mark and warns. It is only looked at.

    The mark can be taken from a view of a private map, as a cache's; where it cannot, it is a copy.
    """
    try:
        part.flags.writeable = True
    except ValueError:
        return np.array(part)
    return part


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
