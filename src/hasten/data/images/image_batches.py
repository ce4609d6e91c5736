"""A batch of images while it is filled, one sample after the other, in the form for the device that it goes to.

| goes to | form | left for the device |
|---|---|---|
| the processor | float32, normalised: made while the image's bytes are still in the cache | nothing |
| the processor, to a channels-last model | the same in that layout, which is how a decoder gives pixels | nothing |
| an accelerator | uint8, a quarter of the size | normalising |
| an accelerator, with `device_transform` | uint8, what the crops show, not resized | resizing, mirroring, normalising |

Source: torch.nn.functional.interpolate with antialias=True.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from hasten.data.images.batch_memory import BatchMemory
from hasten.data.images.crops import Box
from hasten.kernels.resampling.resized_crop import Layout, resized_crops

MOST_SIZES = 4  # times the view's size: the longest side of a part that is put onto a canvas as it is


class Shown(NamedTuple):
    """pixels: uint8 (N, 3, size, size), channels last in memory. labels: int64 (N,)."""

    pixels: Tensor
    labels: Tensor


class Cropped(NamedTuple):
    """What resize_together takes: canvas uint8 (N, H, W, 3), sides int64 (N, 2), mirrored bool (N,); and labels."""

    canvas: Tensor
    sides: Tensor
    mirrored: Tensor
    labels: Tensor


class Colours(NamedTuple):
    """What the three channels are multiplied by, and what is added: float32 (3, 1, 1), for values from 0 to 255."""

    scale: Tensor
    offset: Tensor

    @classmethod
    def of(cls, mean: Sequence[float], deviation: Sequence[float]) -> Self:
        scale = torch.tensor([1 / (255 * each) for each in deviation])
        offset = torch.tensor([-middle / each for middle, each in zip(mean, deviation, strict=True)])
        return cls(scale[:, None, None], offset[:, None, None])

    def normalised(self, pixels: Tensor) -> Tensor:
        """float32 (…, 3, H, W), changed in place."""
        if pixels.is_cpu:  # addcmul is slower where three numbers are spread over all pixels
            return pixels.mul_(self.scale).add_(self.offset)
        # As numbers, not as tensors: to copy those there, the host would wait for all that is queued.
        for channel, (scale, offset) in enumerate(zip(self.scale.flatten(), self.offset.flatten(), strict=True)):
            pixels[..., channel, :, :].mul_(scale.item()).add_(offset.item())
        return pixels


class FillShown:
    """What the crops show, resized: as floats, normalised, or as bytes."""

    def __init__(self, layout: Layout, samples: int, size: int, colours: Colours, memory: BatchMemory) -> None:
        self._layout, self._batch = layout, memory.empty(layout.shape(samples, size), layout.dtype)
        self._show = resized_crops(self._batch, layout, *colours)
        self._labels = torch.empty(samples, dtype=torch.int64)
        self._numbers = self._labels.numpy()  # the same memory: setting one number in a tensor takes far longer

    def put(self, place: int, image: np.ndarray, box: Box, label: int) -> None:
        self._show(place, image, box)
        self._numbers[place] = label

    def batch(self) -> tuple[Tensor, Tensor]:
        pixels = self._batch if self._layout is Layout.PLANES else self._batch.permute(0, 3, 1, 2)
        return Shown(pixels, self._labels) if self._layout is Layout.BYTES else (pixels, self._labels)


FillPixels, FillChannelsLast, FillBytes = (
    partial(FillShown, layout) for layout in (Layout.PLANES, Layout.CHANNELS_LAST, Layout.BYTES)
)


class FillCanvas:
    """One image sets the size of the whole canvas, so what is very large is resized before it comes there."""

    def __init__(self, samples: int, size: int, colours: Colours, memory: BatchMemory) -> None:
        self._size, self._colours = size, colours
        self._parts: list[np.ndarray] = [np.empty((0, 0, 3), dtype=np.uint8)] * samples
        self._mirrored = torch.empty(samples, dtype=torch.bool)
        self._labels = torch.empty(samples, dtype=torch.int64)

    def put(self, place: int, image: np.ndarray, box: Box, label: int) -> None:
        large = max(box.height, box.width) > MOST_SIZES * self._size
        shown = image[box.top : box.top + box.height, box.left : box.left + box.width]
        self._parts[place] = self._resized(image, box) if large else shown
        self._mirrored[place], self._labels[place] = box.mirrored and not large, label

    def _resized(self, image: np.ndarray, box: Box) -> np.ndarray:
        made = torch.empty((1, self._size, self._size, 3), dtype=torch.uint8)
        resized_crops(made, Layout.BYTES, *self._colours)(0, image, box)
        return made[0].numpy()

    def batch(self) -> Cropped:
        canvas, sides = crops_on_canvas(self._parts)
        return Cropped(canvas, sides, self._mirrored, self._labels)


Filling = FillShown | FillCanvas
MakeFilling = Callable[[int, int, Colours, BatchMemory], Filling]  # samples, size of the view, colours, memory


def resize_together(canvas: Tensor, sides: Tensor, mirrored: Tensor, size: int) -> Tensor:
    """float32 (N, 3, size, size), 0 to 255, of a batch of images on the device where they are. canvas: uint8 (N, H, W,
    3), each image in the corner at the top and left; what lies beside it does not count. sides: (N, 2), height and
    width of each. mirrored: bool (N,)."""
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
    """Canvas and sides, as resize_together takes them, of images (uint8, (H, W, 3)) of any size."""
    sides = torch.tensor([part.shape[:2] for part in parts])
    height, width = sides.amax(dim=0).tolist()
    canvas = np.empty((len(parts), height, width, 3), dtype=np.uint8)  # what lies beside an image stays as it comes
    for place, part in zip(canvas, parts, strict=True):
        place[: part.shape[0], : part.shape[1]] = part
    return torch.from_numpy(canvas), sides
