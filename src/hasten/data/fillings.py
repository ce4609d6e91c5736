"""A batch of pictures while it is filled, one sample after the other, in the form that suits where it goes.

| goes to | form | left for the device |
|---|---|---|
| the processor | float32, normalised: made while the picture's bytes are still in the cache | nothing |
| the processor, to a channels-last model | the same in that layout, which is how a decoder gives pixels | nothing |
| an accelerator | uint8, a quarter of the size | normalising |
| an accelerator, with `device_transform` | uint8, what the crops show, not resized | resizing, mirroring, normalising |
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, Self

import numpy as np
import torch
from torch import Tensor

from hasten.data.crops import Box
from hasten.data.recycling import Recycler
from hasten.data.resample import crops_on_canvas, resize_into, resized


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
        if pixels.is_cpu:  # addcmul takes four times as long where three numbers are spread over all pixels
            return pixels.mul_(self.scale).add_(self.offset)
        # As numbers, not as tensors: to copy those there, the host would wait for all that is queued.
        for channel, (scale, offset) in enumerate(zip(self.scale.flatten(), self.offset.flatten(), strict=True)):
            pixels[..., channel, :, :].mul_(scale.item()).add_(offset.item())
        return pixels


class Filling(Protocol):
    def __init__(self, samples: int, size: int, colours: Colours, memory: Recycler) -> None: ...

    def put(self, place: int, picture: np.ndarray, box: Box, label: int) -> None: ...

    def batch(self) -> Any: ...


class FillPixels:
    """float32, normalised, contiguous in memory."""

    def __init__(self, samples: int, size: int, colours: Colours, memory: Recycler) -> None:
        self._pixels = memory.empty((samples, 3, size, size), torch.float32)
        self._places = self._pixels.split(1)
        self._labels = torch.empty(samples, dtype=torch.int64)
        self._numbers = self._labels.numpy()  # the same memory: setting one number in a tensor takes ten times as long
        self._bytes = _bytes(1, size, memory)
        self._colours = colours

    def put(self, place: int, picture: np.ndarray, box: Box, label: int) -> None:
        self._colours.normalised(self._places[place].copy_(resized(self._bytes, picture, box)))
        self._numbers[place] = label

    def batch(self) -> tuple[Tensor, Tensor]:
        return self._pixels, self._labels


class FillChannelsLast:
    """The same numbers, channels last in memory: for a model that computes in that layout."""

    def __init__(self, samples: int, size: int, colours: Colours, memory: Recycler) -> None:
        self._pixels = memory.empty((samples, size, size, 3), torch.float32).permute(0, 3, 1, 2)
        self._labels = torch.empty(samples, dtype=torch.int64)
        self._numbers = self._labels.numpy()  # the same memory: setting one number in a tensor takes ten times as long
        self._bytes = _bytes(1, size, memory)
        # Whole lines, so that the processor finds many numbers in a row to multiply.
        self._scale, self._offset = (each.flatten().repeat(size) for each in colours)
        self._line = (size, 3 * size)
        self._places = self._pixels.permute(0, 2, 3, 1).view(samples, *self._line).unbind()

    def put(self, place: int, picture: np.ndarray, box: Box, label: int) -> None:
        shown = resized(self._bytes, picture, box)[0].permute(1, 2, 0).reshape(self._line)
        self._places[place].copy_(shown).mul_(self._scale).add_(self._offset)
        self._numbers[place] = label

    def batch(self) -> tuple[Tensor, Tensor]:
        return self._pixels, self._labels


class FillBytes:
    def __init__(self, samples: int, size: int, colours: Colours, memory: Recycler) -> None:
        self._shown = Shown(_bytes(samples, size, memory), torch.empty(samples, dtype=torch.int64))

    def put(self, place: int, picture: np.ndarray, box: Box, label: int) -> None:
        resize_into(self._shown.pixels[place], picture, box)
        self._shown.labels[place] = label

    def batch(self) -> Shown:
        return self._shown


class FillCanvas:
    def __init__(self, samples: int, size: int, colours: Colours, memory: Recycler) -> None:
        self._parts: list[np.ndarray] = [np.empty((0, 0, 3), dtype=np.uint8)] * samples
        self._mirrored = torch.empty(samples, dtype=torch.bool)
        self._labels = torch.empty(samples, dtype=torch.int64)

    def put(self, place: int, picture: np.ndarray, box: Box, label: int) -> None:
        self._parts[place] = picture[box.top : box.top + box.height, box.left : box.left + box.width]
        self._mirrored[place], self._labels[place] = box.mirrored, label

    def batch(self) -> Cropped:
        canvas, sides = crops_on_canvas(self._parts)
        return Cropped(canvas, sides, self._mirrored, self._labels)


def _bytes(samples: int, size: int, memory: Recycler) -> Tensor:
    """uint8 (samples, 3, size, size), channels last in memory."""
    return memory.empty((samples, size, size, 3), torch.uint8).permute(0, 3, 1, 2)
