"""Crop, resize and mirror images into their places in a batch.

    put = resized_crops(batch, Layout.PLANES, scale, offset)
    put(3, image, (top, left, height, width, mirrored))    # fills place 3 of the batch

The filter is bilinear and widens with the factor by which a crop shrinks, so that every pixel counts: Pillow's
BILINEAR, and torch's antialias. torch's kernel for uint8 rounds as Pillow does, and is the plain form here.

The C form computes the same numbers bit for bit, in one call. That matters where threads share Python's lock: the plain
form releases and takes it several times for each image.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from enum import IntEnum
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import interpolate

from hasten.errors import Misconfigured
from hasten.kernels.native_code import CannotCompile, compiled

Box = tuple[int, int, int, int, bool]  # top, left, height, width, mirrored; in pixels of the image
Put = Callable[[int, np.ndarray, Box], None]  # place, image (uint8, (H, W, 3)), box


class Layout(IntEnum):
    """The layout of a batch in memory. The numbers are those of the C file."""

    BYTES = 0  # uint8 (N, size, size, 3): the resized bytes
    PLANES = 1  # float32 (N, 3, size, size): bytes times scale, plus offset
    CHANNELS_LAST = 2  # float32 (N, size, size, 3): the same numbers

    def shape(self, samples: int, size: int) -> tuple[int, ...]:
        return (samples, 3, size, size) if self is Layout.PLANES else (samples, size, size, 3)

    @property
    def dtype(self) -> torch.dtype:
        return torch.uint8 if self is Layout.BYTES else torch.float32


def resized_crops(batch: Tensor, layout: Layout, scale: Tensor, offset: Tensor) -> Put:
    """A function that fills places of a batch, in any order, from any thread.

    batch: on the host, contiguous, of the shape and dtype of its layout.
    scale, offset: float32, three numbers each, for values from 0 to 255; ignored for Layout.BYTES.

    The function raises Misconfigured for a box that is not inside its image.
    """
    kernel = find_kernel()
    if isinstance(kernel, str):
        return PlainCrops(batch, layout, scale, offset)
    return CompiledCrops(kernel, batch, layout, scale, offset)


def why_plain() -> str | None:
    """Why the C form is not used here; None where it is. The first call in a process compiles."""
    kernel = find_kernel()
    return kernel if isinstance(kernel, str) else None


@functools.cache
def find_kernel() -> Callable[..., int] | str:
    try:
        kernel = compiled(Path(__file__).with_suffix(".c")).hasten_resized_crop
    except CannotCompile as reason:
        return str(reason)
    address, count, number = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int
    kernel.argtypes = (address, count, count, *[number] * 5, address, address, address)
    return kernel


class CompiledCrops:
    def __init__(
        self, kernel: Callable[..., int], batch: Tensor, layout: Layout, scale: Tensor, offset: Tensor
    ) -> None:
        self._kernel = kernel
        # References, so that their memory stays.
        self._batch, self._colours = batch, _spread(layout, scale, offset, batch.shape[2])
        self._start, self._bytes = batch.data_ptr(), batch.stride(0) * batch.element_size()
        self._rest = (batch.shape[2], int(layout), *(each.data_ptr() for each in self._colours))

    def __call__(self, place: int, image: np.ndarray, box: Box) -> None:
        top, left, height, width, mirrored = _checked(place, image, box, len(self._batch))
        image = _in_lines(image)
        line = image.strides[0]
        skipped = top * line + left * 3
        held = line * (image.shape[0] - 1) + image.shape[1] * 3  # from the first pixel to the last
        failed = self._kernel(
            image.ctypes.data + skipped,
            held - skipped,
            line,
            height,
            width,
            mirrored,
            *self._rest,
            self._start + place * self._bytes,
        )
        if failed:
            raise MemoryError(f"no memory to resize {height} × {width} pixels")


class PlainCrops:
    def __init__(self, batch: Tensor, layout: Layout, scale: Tensor, offset: Tensor) -> None:
        self._layout, self._size = layout, batch.shape[2]
        self._batch = self._places = batch
        self._colours = _spread(layout, scale, offset, self._size)
        if layout is Layout.PLANES:
            self._colours = tuple(each[:, None, None] for each in self._colours)
        elif layout is Layout.CHANNELS_LAST:
            self._places = batch.view(len(batch), self._size, self._size * 3)

    def __call__(self, place: int, image: np.ndarray, box: Box) -> None:
        top, left, height, width, mirrored = _checked(place, image, box, len(self._batch))
        part = _in_lines(image)[top : top + height, left : left + width]
        part = part if part.flags.writeable else part.copy()  # torch warns of read-only memory
        whole = torch.from_numpy(part.transpose(2, 0, 1)[None])
        shown = interpolate(whole, (self._size, self._size), mode="bilinear", antialias=True)
        shown = shown.flip(-1) if mirrored else shown
        to = self._places[place]
        to.copy_(shown[0] if self._layout is Layout.PLANES else shown[0].permute(1, 2, 0).reshape(to.shape))
        if self._layout is not Layout.BYTES:
            scale, offset = self._colours
            to.mul_(scale).add_(offset)


def _spread(layout: Layout, scale: Tensor, offset: Tensor, size: int) -> tuple[Tensor, ...]:
    """The numbers of the three colours; repeated for a whole line of pixels in CHANNELS_LAST, to multiply vectors."""
    times = size if layout is Layout.CHANNELS_LAST else 1
    return tuple(each.flatten().float().repeat(times) for each in (scale, offset))


def _checked(place: int, image: np.ndarray, box: Box, places: int) -> Box:
    """The box as integers. Raises an error unless C stays inside the image and the batch."""
    if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3 or not 0 <= place < places:
        raise ValueError(f"cannot put an image of {image.dtype} {image.shape} into place {place} of {places}")
    top, left, height, width, mirrored = map(int, box)
    if not (0 <= top < top + height <= image.shape[0] and 0 <= left < left + width <= image.shape[1]):
        raise Misconfigured(
            f"the box {tuple(box)} is not inside an image of {image.shape[0]} × {image.shape[1]} pixels",
            fix="return a box (top, left, height, width) inside the image from the view",
        )
    return top, left, height, width, bool(mirrored)


def _in_lines(image: np.ndarray) -> np.ndarray:
    """The image with contiguous pixels in each line, and lines in order; copied where it is not so."""
    fits = image.strides[1:] == (3, 1) and image.strides[0] >= 0
    return image if fits else np.ascontiguousarray(image)
