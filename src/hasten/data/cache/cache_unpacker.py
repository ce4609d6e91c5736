"""Samples put together again from what cache_samples.py made of them: as copies of their own, or as they lie in a file.

It is done for every sample of every epoch, so whatever follows from the form alone (dtypes, fixed sizes, which numbers
are whose, how parts make up a sample) is worked out once. What is left for each end of a form is two calls of functions
that know it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import torch

from hasten.data.cache.sample_format import ALIGNMENT, MODE_NAMES, MODES, PLAIN, Form

Make = Callable[[list[int], np.ndarray, int], Any]  # a sample's numbers, its values, and where those of this end begin


@dataclass(frozen=True, slots=True)
class End:
    """How one end of a form is read.

    numbers: how many of a sample's numbers are for it.
    taken: bytes of its values, up to where the next end's begin, from the sample's numbers.
    copied, viewed: what is made of them.
    """

    numbers: int
    taken: Callable[[list[int]], int]
    copied: Make
    viewed: Make


class Unpacker:
    """Puts samples of one form together.

    numbers: how many whole numbers each sample has in the index.
    Raises ValueError for a form that `packed` cannot have made.
    """

    def __init__(self, form: Form) -> None:
        ends, self.numbers = list[End](), 0
        for end in ends_of(form):
            ends.append(end_of(end, self.numbers))
            self.numbers += ends[-1].numbers
        self._assembled = assembler(form)
        self._copying = [(end.copied, end.taken) for end in ends]
        self._viewing = [(end.viewed, end.taken) for end in ends]

    def sample(self, numbers: list[int], values: np.ndarray) -> Any:
        """A sample of its own memory: it can be changed in place."""
        return self._put(self._copying, numbers, values)

    def view(self, numbers: list[int], values: np.ndarray) -> Any:
        """The same without copying: tensors, arrays and pictures as read-only arrays of `values`.

        A picture has the shape (height, width) or (height, width, bands), in "1" with 0 and 255; a tensor of a dtype
        that NumPy has not (bfloat16) is its bytes: uint8, shape (bytes,).
        """
        return self._put(self._viewing, numbers, values)

    def _put(self, ends: list[tuple[Make, Callable[[list[int]], int]]], numbers: list[int], values: np.ndarray) -> Any:
        start = 0
        made: list[Any] = []
        for make, taken in ends:
            made.append(make(numbers, values, start))
            start += taken(numbers)
        return self._assembled(iter(made))


def ends_of(form: Form) -> Iterator[Form]:
    """The ends of a form, in the order of their values. Raises ValueError for what is no form."""
    kind = form[0]
    if kind in ("tuple", "list"):
        for inner in form[1]:
            yield from ends_of(inner)
    elif kind == "dict":
        for _, inner in form[1]:
            yield from ends_of(inner)
    else:
        yield form


def end_of(form: Form, at: int) -> End:
    """How an end of a form is read. at: the place of its numbers among a sample's. Raises ValueError if it is none."""
    kind = form[0]
    if kind == "tensor":
        return _tensor(form[1], at, at + form[2], at + 2 * form[2])
    if kind == "array":
        return _array(_numbers_dtype(form[1]), at, at + form[2], at + 2 * form[2])
    if kind == "scalar":
        return _scalar(_numbers_dtype(form[1]))
    if kind == "none":
        return _fixed(0, lambda numbers, values, start: None)
    if kind in _PLAIN_BY_NAME:
        return _number(kind)
    if kind in ("str", "bytes"):
        return _text(at) if kind == "str" else _bytes(at)
    if kind == "image":
        return _image(at)
    raise ValueError(f"no part of a sample: {kind}")


def assembler(form: Form) -> Callable[[Iterator[Any]], Any]:
    """Makes a sample in this form of what was made for each of its ends, in their order."""
    kind = form[0]
    if kind not in ("tuple", "list", "dict"):
        return next
    if kind == "dict":
        pairs = [(key, assembler(inner)) for key, inner in form[1]]
        return lambda made: {key: inner(made) for key, inner in pairs}
    parts = [*map(assembler, form[1])]
    if kind == "list":
        return lambda made: [part(made) for part in parts]
    return lambda made: tuple([part(made) for part in parts])


def numpy_dtype(dtype: torch.dtype) -> np.dtype | None:
    """NumPy's dtype of the same numbers; None for one that NumPy has not."""
    try:
        return torch.empty(0, dtype=dtype).numpy().dtype
    except TypeError:
        return None


def padded(size: int) -> int:
    """Bytes up to where the next value begins."""
    return size + -size % ALIGNMENT


# ── the kinds of ends ───────────────────────────────────────────────────────────────────────────────────────────────


# Shapes are the numbers at..middle, strides those at middle..stop.


def _tensor(name: str, at: int, middle: int, stop: int) -> End:
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"no dtype of torch: {name}")
    unit, known = dtype.itemsize, numpy_dtype(dtype)

    def copied(numbers: list[int], values: np.ndarray, start: int) -> torch.Tensor:
        size = prod(numbers[at:middle]) * unit
        memory = torch.empty(size, dtype=torch.uint8)
        memory.numpy()[:] = values[start : start + size]
        return memory.view(dtype).as_strided(numbers[at:middle], numbers[middle:stop])

    def viewed(numbers: list[int], values: np.ndarray, start: int) -> np.ndarray:
        if known is None:
            return values[start : start + prod(numbers[at:middle]) * unit]
        strides = [stride * unit for stride in numbers[middle:stop]]
        return np.ndarray(numbers[at:middle], known, values, start, strides)

    return End(stop - at, lambda numbers: padded(prod(numbers[at:middle]) * unit), copied, viewed)


def _array(dtype: np.dtype, at: int, middle: int, stop: int) -> End:
    unit = dtype.itemsize

    def copied(numbers: list[int], values: np.ndarray, start: int) -> np.ndarray:
        memory = values[start : start + prod(numbers[at:middle]) * unit].copy()
        return np.ndarray(numbers[at:middle], dtype, memory, 0, numbers[middle:stop])

    def viewed(numbers: list[int], values: np.ndarray, start: int) -> np.ndarray:
        return np.ndarray(numbers[at:middle], dtype, values, start, numbers[middle:stop])

    return End(stop - at, lambda numbers: padded(prod(numbers[at:middle]) * unit), copied, viewed)


def _scalar(dtype: np.dtype) -> End:
    def read(numbers: list[int], values: np.ndarray, start: int) -> Any:
        return np.frombuffer(values, dtype, 1, start)[0]

    return _fixed(dtype.itemsize, read)


def _number(kind: str) -> End:
    layout = struct.Struct(_PLAIN_BY_NAME[kind])
    unpacked = layout.unpack_from

    def read(numbers: list[int], values: np.ndarray, start: int) -> Any:
        return unpacked(values.data, start)[0]

    def read_complex(numbers: list[int], values: np.ndarray, start: int) -> complex:
        return complex(*unpacked(values.data, start))

    return _fixed(layout.size, read_complex if kind == "complex" else read)


def _fixed(size: int, read: Make) -> End:
    room = padded(size)
    return End(0, lambda numbers: room, read, read)


def _bytes(at: int) -> End:
    def read(numbers: list[int], values: np.ndarray, start: int) -> bytes:
        return values[start : start + numbers[at]].tobytes()

    return End(1, lambda numbers: padded(numbers[at]), read, read)


def _text(at: int) -> End:
    inner = _bytes(at)

    def read(numbers: list[int], values: np.ndarray, start: int) -> str:
        return inner.copied(numbers, values, start).decode("utf-8", "surrogatepass")

    return End(1, inner.taken, read, read)


def _image(at: int) -> End:
    def copied(numbers: list[int], values: np.ndarray, start: int) -> Any:
        from PIL import Image  # only a cache with pictures needs Pillow

        height, width, number, colours, palette = numbers[at : at + 5]
        mode, size = MODE_NAMES[number], _pixel_bytes(height, width, number)
        pixels = values[start : start + size].tobytes()
        if mode == "1":
            return Image.frombytes("L", (width, height), pixels).convert("1", dither=Image.Dither.NONE)
        image = Image.frombytes(mode, (width, height), pixels)
        if mode == "P":
            start += padded(size)
            image.putpalette(values[start : start + palette].tobytes(), "RGB" if colours == 3 else "RGBA")
        return image

    def viewed(numbers: list[int], values: np.ndarray, start: int) -> np.ndarray:
        height, width, number = numbers[at : at + 3]
        bands, dtype = MODES[MODE_NAMES[number]]
        return np.ndarray((height, width, bands) if bands > 1 else (height, width), np.dtype(dtype), values, start)

    def taken(numbers: list[int]) -> int:
        return padded(_pixel_bytes(*numbers[at : at + 3])) + padded(numbers[at + 4])

    return End(5, taken, copied, viewed)


def _pixel_bytes(height: int, width: int, mode: int) -> int:
    bands, dtype = MODES[MODE_NAMES[mode]]
    return height * width * bands * np.dtype(dtype).itemsize


def _numbers_dtype(name: str) -> np.dtype:
    dtype = np.dtype(name)
    if dtype.kind not in "biufc":
        raise ValueError(f"no dtype of numbers: {name}")
    return dtype


_PLAIN_BY_NAME = {kind.__name__: code for kind, code in PLAIN.items()}
