"""Parts of pictures, resized and put into their places in a batch.

    put = resized_crops(batch, Layout.PLANES, scale, offset)
    put(3, picture, (top, left, height, width, mirrored))    # place 3 of the batch is filled

The filter is bilinear, widened by the factor by which a part shrinks, so that every pixel of it counts: Pillow's
BILINEAR, and what torch calls antialias. Its kernel for uint8 rounds as Pillow does, and is the plain form here.

The compiled form gives the same numbers, bit for bit, and one call does all of it. That counts where threads share an
interpreter: the plain form gives the interpreter away, and waits for it, several times a picture. Before it is used,
both forms are given the same small pictures, and must agree.
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

from hasten.errors import Misconfigured
from hasten.kernels.native_code import CannotCompile, compiled

Box = tuple[int, int, int, int, bool]  # top, left, height, width, mirrored; in pixels of the picture
Put = Callable[[int, np.ndarray, Box], None]  # place, picture (uint8, (H, W, 3)), box

_RESIZE = torch.ops.aten._upsample_bilinear2d_aa.out  # what interpolate calls; only this form writes where it is told


class Layout(IntEnum):
    """How a batch lies in memory. The numbers are those of the C file."""

    BYTES = 0  # uint8 (N, size, size, 3): what is resized, as it is
    PLANES = 1  # float32 (N, 3, size, size): times scale, plus offset
    CHANNELS_LAST = 2  # float32 (N, size, size, 3): the same numbers

    def shape(self, samples: int, size: int) -> tuple[int, ...]:
        return (samples, 3, size, size) if self is Layout.PLANES else (samples, size, size, 3)

    @property
    def dtype(self) -> torch.dtype:
        return torch.uint8 if self is Layout.BYTES else torch.float32


def resized_crops(batch: Tensor, layout: Layout, scale: Tensor, offset: Tensor) -> Put:
    """What fills places of a batch, in any order, from any thread.

    batch: on the host, contiguous, of the shape and dtype of its layout.
    scale, offset: float32, three numbers each, for values from 0 to 255; of no meaning for bytes.

    The function that is returned raises Misconfigured for a box that does not lie inside its picture.
    """
    kernel = _kernel()
    if isinstance(kernel, str):
        return _Plain(batch, layout, scale, offset)
    return _Compiled(kernel, batch, layout, scale, offset)


def why_plain() -> str | None:
    """Why the compiled form is not used here; None where it is. Compiles on the first call in a process."""
    kernel = _kernel()
    return kernel if isinstance(kernel, str) else None


@functools.cache
def _kernel() -> Callable[..., int] | str:
    try:
        kernel = compiled(Path(__file__).with_suffix(".c")).hasten_resized_crop
    except CannotCompile as reason:
        return str(reason)
    except AttributeError:
        return "the compiled library lacks the kernel"
    address, count, number = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int
    kernel.argtypes = (address, count, count, *[number] * 5, address, address, address)
    return kernel if _agree(kernel) else "the compiled form does not agree with torch's on this machine"


def _agree(kernel: Callable[..., int]) -> bool:
    """Whether both forms make the same of a few small pictures: smaller, larger, at the edges, mirrored."""
    picture = np.random.default_rng(0).integers(0, 256, (41, 67, 3), dtype=np.uint8)
    scale, offset = torch.tensor([0.017, 0.0174, 0.0175]), torch.tensor([-2.1, -2.0, -1.8])
    for layout in Layout:
        for size in (7, 24, 61):
            made = [torch.empty(layout.shape(1, size), dtype=layout.dtype) for _ in range(2)]
            for box in ((0, 0, 41, 67, False), (20, 30, 21, 37, True), (3, 5, 9, 24, False)):
                _Plain(made[0], layout, scale, offset)(0, picture, box)
                _Compiled(kernel, made[1], layout, scale, offset)(0, picture, box)
                if not torch.equal(*made):
                    return False
    return True


class _Compiled:
    def __init__(
        self, kernel: Callable[..., int], batch: Tensor, layout: Layout, scale: Tensor, offset: Tensor
    ) -> None:
        self._kernel = kernel
        self._batch, self._colours = batch, _spread(layout, scale, offset, batch.shape[2])  # kept alive
        self._start, self._bytes = batch.data_ptr(), batch.stride(0) * batch.element_size()
        self._rest = (batch.shape[2], int(layout), *(each.data_ptr() for each in self._colours))

    def __call__(self, place: int, picture: np.ndarray, box: Box) -> None:
        top, left, height, width, mirrored = _checked(place, picture, box, len(self._batch))
        picture = _in_lines(picture)
        line = picture.strides[0]
        skipped = top * line + left * 3
        held = line * (picture.shape[0] - 1) + picture.shape[1] * 3  # from the first pixel to the last
        failed = self._kernel(
            picture.ctypes.data + skipped,
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


class _Plain:
    def __init__(self, batch: Tensor, layout: Layout, scale: Tensor, offset: Tensor) -> None:
        self._layout, self._size = layout, batch.shape[2]
        self._batch = self._places = batch
        self._colours = _spread(layout, scale, offset, self._size)
        if layout is Layout.PLANES:
            self._colours = tuple(each[:, None, None] for each in self._colours)
        elif layout is Layout.CHANNELS_LAST:
            self._places = batch.view(len(batch), self._size, self._size * 3)

    def __call__(self, place: int, picture: np.ndarray, box: Box) -> None:
        top, left, height, width, mirrored = _checked(place, picture, box, len(self._batch))
        part = _writable(_in_lines(picture)[top : top + height, left : left + width])
        whole = torch.from_numpy(part.transpose(2, 0, 1)[None])
        shown = torch.empty((1, self._size, self._size, 3), dtype=torch.uint8).permute(0, 3, 1, 2)
        _RESIZE(whole, shown.shape[2:], False, None, None, out=shown)
        shown = shown.flip(-1) if mirrored else shown
        to = self._places[place]
        to.copy_(shown[0] if self._layout is Layout.PLANES else shown[0].permute(1, 2, 0).reshape(to.shape))
        if self._layout is not Layout.BYTES:
            scale, offset = self._colours
            to.mul_(scale).add_(offset)


def _spread(layout: Layout, scale: Tensor, offset: Tensor, size: int) -> tuple[Tensor, ...]:
    """The colours' numbers; for a line of pixels as often as it has pixels, so that many can be multiplied in a row."""
    times = size if layout is Layout.CHANNELS_LAST else 1
    return tuple(each.flatten().float().repeat(times) for each in (scale, offset))


def _checked(place: int, picture: np.ndarray, box: Box, places: int) -> Box:
    """Nothing that C is told may lead it out of the picture or the batch."""
    if picture.dtype != np.uint8 or picture.ndim != 3 or picture.shape[2] != 3 or not 0 <= place < places:
        raise ValueError(f"place {place} of {places}, and a picture of {picture.dtype} {picture.shape}")
    top, left, height, width, mirrored = map(int, box)
    if not (0 <= top < top + height <= picture.shape[0] and 0 <= left < left + width <= picture.shape[1]):
        raise Misconfigured(
            f"the box {tuple(box)} does not lie inside a picture of {picture.shape[0]} × {picture.shape[1]} pixels",
            fix="let the view's box return one that does: top, left, height, width",
        )
    return top, left, height, width, bool(mirrored)


def _in_lines(picture: np.ndarray) -> np.ndarray:
    """The picture with its pixels side by side in each line, and lines one below the other."""
    fits = picture.strides[1:] == (3, 1) and picture.strides[0] >= 0
    return picture if fits else np.ascontiguousarray(picture)


def _writable(part: np.ndarray) -> np.ndarray:
    """Memory that is marked as read-only as torch takes it, which has no such mark and warns. It is only looked at.

    The mark can be taken from a view of a private map, as a cache's; where it cannot, it is a copy.
    """
    if not part.flags.writeable:
        try:
            part.flags.writeable = True
        except ValueError:
            return np.array(part)
    return part
