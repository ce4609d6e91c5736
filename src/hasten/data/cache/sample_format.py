"""A sample as bytes, and the same sample again.

A sample is a form, numbers and values. The *form* says what it is made of: tuples, lists, dictionaries, and at their
ends tensors, arrays, numbers, text or pictures with their types. Every sample of a cache has the same form, so it is
kept once. The *numbers* are what may differ: shapes, strides, lengths. The *values* are plain bytes, each beginning at
a multiple of 64, so that it can be looked at where it lies.

This is a format of its own because the others lose something. Pickle runs what a file says; npy holds one array;
safetensors has no text, no nesting and no None. What was given up: subclasses (named tuples, tensors of torchvision)
are refused, since to restore them would be to import what a file names.

Here samples are taken apart; cache_unpacker.py puts them together.

| kept | comes back as |
|---|---|
| torch.Tensor on the CPU, dense, without gradient | the same dtype, shape and strides |
| numpy.ndarray and NumPy's own numbers, of bool, int, float or complex | the same dtype, shape and strides |
| int (64 bits), float, complex, bool, None, str, bytes | the same |
| PIL images | a plain Image of the same mode, size, pixels and palette; its `info` is not kept |

An array whose elements do not lie side by side (a slice with steps) comes back contiguous, with the same elements.
"""

from __future__ import annotations

import struct
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hasten.facts.job import describe

ALIGNMENT = 64  # bytes: a cache line, and what torch's allocator gives
Form = list[Any]  # what JSON can hold: a kind, and what belongs to it

MODES = {  # bands and the type of each, by Pillow's names; "1" is kept as one byte a pixel
    "1": (1, "|u1"),
    "L": (1, "|u1"),
    "P": (1, "|u1"),
    "LA": (2, "|u1"),
    "RGB": (3, "|u1"),
    "YCbCr": (3, "|u1"),
    "LAB": (3, "|u1"),
    "HSV": (3, "|u1"),
    "RGBA": (4, "|u1"),
    "CMYK": (4, "|u1"),
    "I;16": (1, "<u2"),
    "I": (1, "=i4"),
    "F": (1, "=f4"),
}
MODE_NAMES = tuple(MODES)
_ORIENTATION = 0x0112  # of EXIF


class CannotKeep(Exception):
    """A value that has no place in the format: where in the sample, what it is, and what to do."""

    def __init__(self, place: str, what: str, fix: str) -> None:
        super().__init__(place, what, fix)
        self.place, self.what, self.fix = place, what, fix


@dataclass(frozen=True, slots=True)
class Packed:
    form: Form
    numbers: tuple[int, ...]
    values: bytes  # each value begins at a multiple of ALIGNMENT, and so does what follows


def packed(sample: Any) -> Packed:
    """Take a sample apart. Raises CannotKeep."""
    numbers: list[int] = []
    parts: list[bytes] = []
    form = _taken_apart(sample, "", numbers, parts)
    return Packed(form, tuple(numbers), b"".join(part + bytes(-len(part) % ALIGNMENT) for part in parts))


def difference(form: Form, other: Form, place: str = "") -> str | None:
    """Where two forms differ, and how, in words; None when they are the same."""
    if form == other:
        return None
    if form[0] == other[0] == "dict" and [key for key, _ in form[1]] == [key for key, _ in other[1]]:
        pairs = [(f"{place}[{key!r}]", mine, its) for (key, mine), (_, its) in zip(form[1], other[1], strict=True)]
    elif form[0] == other[0] and form[0] in ("tuple", "list") and len(form[1]) == len(other[1]):
        pairs = [(f"{place}[{at}]", mine, its) for at, (mine, its) in enumerate(zip(form[1], other[1], strict=True))]
    else:
        return f"{place or 'it'} is {_in_words(form)}, and was {_in_words(other)}"
    return next(found for where, mine, its in pairs if (found := difference(mine, its, where)) is not None)


def _in_words(form: Form) -> str:
    kind = form[0]
    if kind in ("tensor", "array"):
        return f"{'a tensor' if kind == 'tensor' else 'an array'} of {form[1]} with {form[2]} dimensions"
    if kind == "dict":
        return f"a dictionary with the keys {', '.join(repr(key) for key, _ in form[1])}"
    return f"a {kind} of {len(form[1])}" if kind in ("tuple", "list") else kind


# ── taking apart ────────────────────────────────────────────────────────────────────────────────────────────────────


def _taken_apart(value: Any, place: str, numbers: list[int], parts: list[bytes]) -> Form:
    kind: type = type(value)
    if kind is tuple or kind is list:
        inner = [_taken_apart(item, f"{place}[{at}]", numbers, parts) for at, item in enumerate(value)]
        return [kind.__name__, inner]
    if kind is dict:
        for key in value:
            if type(key) not in (str, int):
                raise CannotKeep(place, f"has the key {describe(key)}", "let keys be text or whole numbers")
        return ["dict", [[key, _taken_apart(item, f"{place}[{key!r}]", numbers, parts)] for key, item in value.items()]]
    if kind is Tensor:
        return _tensor_apart(value, place, numbers, parts)
    if kind is np.ndarray or kind is np.memmap:
        return _array_apart(np.asarray(value), place, numbers, parts)
    if kind is str or kind is bytes:
        data = value.encode("utf-8", "surrogatepass") if kind is str else value
        numbers.append(len(data))
        parts.append(data)
        return [kind.__name__]
    if value is None:
        return ["none"]
    if isinstance(value, np.generic) and value.dtype.kind in "biufc":
        parts.append(value.tobytes())
        return ["scalar", value.dtype.str]
    if kind in PLAIN:
        return _number_apart(value, place, parts)
    image = sys.modules.get("PIL.Image")  # a sample can be a picture only where Pillow was loaded
    if image is not None and isinstance(value, image.Image):
        return _image_apart(value, place, numbers, parts)
    raise CannotKeep(
        place, f"is {describe(value)}", "return tensors, arrays, numbers, text, pictures, plain containers"
    )


PLAIN = {int: "<q", float: "<d", complex: "<2d", bool: "<?"}


def _number_apart(value: Any, place: str, parts: list[bytes]) -> Form:
    kind = type(value)
    try:
        parts.append(struct.pack(PLAIN[kind], *((value.real, value.imag) if kind is complex else (value,))))
    except struct.error:
        raise CannotKeep(place, f"is {describe(value)}, which 64 bits do not hold", "return it as text") from None
    return [kind.__name__]


def _tensor_apart(tensor: Tensor, place: str, numbers: list[int], parts: list[bytes]) -> Form:
    if tensor.layout is not torch.strided or not tensor.is_cpu or tensor.requires_grad or tensor.is_quantized:
        raise CannotKeep(
            place,
            f"is a tensor on {tensor.device} ({tensor.layout}, requires_grad={tensor.requires_grad})",
            "return dense tensors on the CPU, detached",
        )
    tensor = tensor.resolve_conj().resolve_neg()
    order = _order(tensor.stride())
    if not tensor.permute(order).is_contiguous():
        tensor, order = tensor.contiguous(), range(tensor.dim())
    numbers.extend((*tensor.shape, *tensor.stride()))
    parts.append(tensor.permute(tuple(order)).reshape(-1).view(torch.uint8).numpy().tobytes())
    return ["tensor", str(tensor.dtype).removeprefix("torch."), tensor.dim()]


def _array_apart(array: np.ndarray, place: str, numbers: list[int], parts: list[bytes]) -> Form:
    if array.dtype.kind not in "biufc":
        raise CannotKeep(place, f"is an array of {array.dtype}", "return arrays of numbers")
    order = _order(array.strides)
    if not array.transpose(order).flags.c_contiguous or any(stride < 0 for stride in array.strides):
        array = np.ascontiguousarray(array).reshape(array.shape)  # the first makes one dimension of none
        order = tuple(range(array.ndim))
    numbers.extend((*array.shape, *array.strides))
    parts.append(array.transpose(order).tobytes())
    return ["array", array.dtype.str, array.ndim]


def _order(strides: tuple[int, ...]) -> tuple[int, ...]:
    """The dimensions from the one with the widest stride to the one with the narrowest."""
    return tuple(sorted(range(len(strides)), key=lambda at: (-strides[at], at)))


def _image_apart(image: Any, place: str, numbers: list[int], parts: list[bytes]) -> Form:
    if image.mode not in MODES:
        raise CannotKeep(place, f"is a picture of mode {image.mode}", 'convert it first: image.convert("RGB")')
    if "transparency" in image.info:
        raise CannotKeep(place, "is a picture with a transparent colour", 'convert it first: image.convert("RGBA")')
    if image.getexif().get(_ORIENTATION, 1) != 1:
        # A cache keeps pixels, not EXIF: whoever turned it later would find nothing to turn.
        fix = "turn it in the steady part: PIL.ImageOps.exif_transpose(image)"
        raise CannotKeep(place, "is a picture that its EXIF data says to turn", fix)
    image.load()
    colours, palette = ("", b"")
    if image.mode == "P":
        colours, palette = image.palette.mode, bytes(image.getpalette(image.palette.mode))
        if colours not in ("RGB", "RGBA"):
            raise CannotKeep(place, f"is a picture with a palette of {colours}", 'convert it: image.convert("RGB")')
    pixels = image.convert("L").tobytes() if image.mode == "1" else image.tobytes()
    numbers.extend((image.height, image.width, MODE_NAMES.index(image.mode), len(colours), len(palette)))
    parts.extend((pixels, palette))
    return ["image"]
