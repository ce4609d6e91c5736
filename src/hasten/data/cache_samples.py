"""A sample as bytes, and the same sample again.

A sample is a form, numbers and values. The *form* says what it is made of: tuples, lists, dictionaries, and at their
ends tensors, arrays, numbers, text or pictures with their types. Every sample of a cache has the same form, so it is
kept once. The *numbers* are what may differ: shapes, strides, lengths. The *values* are plain bytes, each beginning at
a multiple of 64, so that it can be looked at where it lies.

This is a format of its own because the others lose something. Pickle runs what a file says; npy holds one array;
safetensors has no text, no nesting and no None. What was given up: subclasses (named tuples, tensors of torchvision)
are refused, since to restore them would be to import what a file names.

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
from collections.abc import Callable, Iterator
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
_MODE_NAMES = tuple(MODES)
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
    if kind in _PLAIN:
        return _number_apart(value, place, parts)
    image = sys.modules.get("PIL.Image")  # a sample can be a picture only where Pillow was loaded
    if image is not None and isinstance(value, image.Image):
        return _image_apart(value, place, numbers, parts)
    raise CannotKeep(
        place, f"is {describe(value)}", "return tensors, arrays, numbers, text, pictures, plain containers"
    )


_PLAIN = {int: "<q", float: "<d", complex: "<2d", bool: "<?"}


def _number_apart(value: Any, place: str, parts: list[bytes]) -> Form:
    kind = type(value)
    try:
        parts.append(struct.pack(_PLAIN[kind], *((value.real, value.imag) if kind is complex else (value,))))
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
    numbers.extend((image.height, image.width, _MODE_NAMES.index(image.mode), len(colours), len(palette)))
    parts.extend((pixels, palette))
    return ["image"]


# ── putting together ────────────────────────────────────────────────────────────────────────────────────────────────


class Unpacker:
    """Puts samples of one form together.

    numbers: how many whole numbers each sample has in the index.
    Raises ValueError for a form that `packed` cannot have made.
    """

    def __init__(self, form: Form) -> None:
        self.form = form
        self.ends = [*ends_of(form)]
        self.numbers = sum(numbers_of(end) for end in self.ends)

    def sample(self, numbers: list[int], values: np.ndarray) -> Any:
        """A sample of its own memory: it can be changed in place."""
        return self._put(numbers, values, _copied)

    def view(self, numbers: list[int], values: np.ndarray) -> Any:
        """The same without copying: tensors, arrays and pictures as read-only arrays of `values`.

        A picture has the shape (height, width) or (height, width, bands), in "1" with 0 and 255; a tensor of a dtype
        that NumPy has not (bfloat16) is its bytes: uint8, shape (bytes,).
        """
        return self._put(numbers, values, _viewed)

    def _put(self, numbers: list[int], values: np.ndarray, make: Callable[..., Any]) -> Any:
        at = start = 0
        made: list[Any] = []
        for end in self.ends:
            count = numbers_of(end)
            own = numbers[at : at + count]
            sizes = sizes_of(end, own)
            pieces: list[np.ndarray] = []
            for size in sizes:
                pieces.append(values[start : start + size])
                start += size + -size % ALIGNMENT
            made.append(make(end, own, pieces))
            at += count
        return assembled(self.form, iter(made))


_NUMBERS: dict[str, Callable[[Form], int]] = {
    "tensor": lambda end: 2 * end[2],
    "array": lambda end: 2 * end[2],
    "scalar": lambda end: 0,
    "str": lambda end: 1,
    "bytes": lambda end: 1,
    "image": lambda end: 5,
    **dict.fromkeys(("none", "int", "float", "complex", "bool"), lambda end: 0),
}


def numbers_of(end: Form) -> int:
    """How many numbers each sample has for this end."""
    return _NUMBERS[end[0]](end)


def ends_of(form: Form) -> Iterator[Form]:
    """The ends of a form, in the order of their values. Raises ValueError for what is no form."""
    kind = form[0]
    if kind in ("tuple", "list"):
        for inner in form[1]:
            yield from ends_of(inner)
    elif kind == "dict":
        for _, inner in form[1]:
            yield from ends_of(inner)
    elif kind in _NUMBERS:
        if kind == "tensor" and not isinstance(getattr(torch, form[1], None), torch.dtype):
            raise ValueError(f"no dtype of torch: {form[1]}")
        if kind in ("array", "scalar") and np.dtype(form[1]).kind not in "biufc":
            raise ValueError(f"no dtype of numbers: {form[1]}")
        yield form
    else:
        raise ValueError(f"no part of a sample: {kind}")


def sizes_of(end: Form, own: list[int]) -> tuple[int, ...]:
    """Bytes of each of the values that stand for one end."""
    kind = end[0]
    if kind == "tensor":
        return (_product(own[: end[2]]) * getattr(torch, end[1]).itemsize,)
    if kind == "array":
        return (_product(own[: end[2]]) * np.dtype(end[1]).itemsize,)
    if kind == "scalar":
        return (np.dtype(end[1]).itemsize,)
    if kind == "image":
        height, width, mode, _, palette = own
        bands, dtype = MODES[_MODE_NAMES[mode]]
        return height * width * bands * np.dtype(dtype).itemsize, palette
    if kind in ("str", "bytes"):
        return (own[0],)
    return () if kind == "none" else (struct.calcsize(_PLAIN_BY_NAME[kind]),)


_PLAIN_BY_NAME = {kind.__name__: code for kind, code in _PLAIN.items()}


def _product(numbers: list[int]) -> int:
    found = 1
    for number in numbers:
        found *= number
    return found


def assembled(form: Form, made: Iterator[Any]) -> Any:
    """What was made for each end, in the form of a sample."""
    kind = form[0]
    if kind == "tuple":
        return tuple([assembled(inner, made) for inner in form[1]])
    if kind == "list":
        return [assembled(inner, made) for inner in form[1]]
    if kind == "dict":
        return {key: assembled(inner, made) for key, inner in form[1]}
    return next(made)


def _copied(end: Form, own: list[int], pieces: list[np.ndarray]) -> Any:
    kind = end[0]
    if kind == "tensor":
        memory = torch.empty(len(pieces[0]), dtype=torch.uint8)
        memory.numpy()[:] = pieces[0]
        return memory.view(getattr(torch, end[1])).as_strided(own[: end[2]], own[end[2] :])
    if kind == "array":
        return np.ndarray(own[: end[2]], np.dtype(end[1]), pieces[0].copy(), strides=own[end[2] :])
    return _image(own, pieces) if kind == "image" else _small(end, pieces)


def _viewed(end: Form, own: list[int], pieces: list[np.ndarray]) -> Any:
    kind = end[0]
    if kind == "tensor":
        dtype = numpy_dtype(getattr(torch, end[1]))
        if dtype is None:
            return pieces[0]
        strides = [stride * dtype.itemsize for stride in own[end[2] :]]
        return np.ndarray(own[: end[2]], dtype, pieces[0], strides=strides)
    if kind == "array":
        return np.ndarray(own[: end[2]], np.dtype(end[1]), pieces[0], strides=own[end[2] :])
    if kind == "image":
        bands, dtype = MODES[_MODE_NAMES[own[2]]]
        return np.ndarray((*own[:2], bands) if bands > 1 else own[:2], np.dtype(dtype), pieces[0])
    return _small(end, pieces)


def _small(end: Form, pieces: list[np.ndarray]) -> Any:
    kind = end[0]
    if kind == "none":
        return None
    data = pieces[0].tobytes()
    if kind == "scalar":
        return np.frombuffer(data, np.dtype(end[1]))[0]
    if kind in ("str", "bytes"):
        return data.decode("utf-8", "surrogatepass") if kind == "str" else data
    found = struct.unpack(_PLAIN_BY_NAME[kind], data)
    return complex(*found) if kind == "complex" else found[0]


def _image(own: list[int], pieces: list[np.ndarray]) -> Any:
    from PIL import Image  # only a cache with pictures needs Pillow

    height, width, number, colours, _ = own
    mode, pixels = _MODE_NAMES[number], pieces[0].tobytes()
    if mode == "1":
        return Image.frombytes("L", (width, height), pixels).convert("1", dither=Image.Dither.NONE)
    image = Image.frombytes(mode, (width, height), pixels)
    if mode == "P":
        image.putpalette(pieces[1].tobytes(), "RGB" if colours == 3 else "RGBA")
    return image


def numpy_dtype(dtype: torch.dtype) -> np.dtype | None:
    """NumPy's dtype of the same numbers; None for one that NumPy has not."""
    try:
        return torch.empty(0, dtype=dtype).numpy().dtype
    except TypeError:
        return None
