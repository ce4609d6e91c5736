"""A sample as bytes, and the same sample again.

A sample is a form, numbers and values. The *form* says what it is made of: tuples, lists, dictionaries, and as their
leaves tensors, arrays, numbers, text or images with their types. Every sample of a cache has the same form, so it is
stored once. The *numbers* may differ: shapes and lengths. The *values* are plain bytes, each beginning at a multiple of
64, so that an array can be used where it lies.

The other formats lose something: pickle runs what a file says; npy holds one array; safetensors has no text, no nesting
and no None. Subclasses (named tuples, tensors of torchvision) are refused: to restore them, code that a file names
would have to be imported.

| stored | comes back as |
|---|---|
| torch.Tensor on the CPU, dense, without gradient | the same dtype and shape, contiguous |
| numpy.ndarray and NumPy's own numbers, of bool, int, float or complex | the same dtype and shape, contiguous |
| int (64 bits), float, complex, bool, None, str, bytes | the same |
| PIL images in the modes of BANDS | a plain Image of the same mode, size and pixels; its `info` is not stored |

Reading is done for every sample of every epoch, so whatever follows from the form alone is computed once.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hasten.facts.job import describe

ALIGNMENT = 64  # bytes: a cache line, and what torch's allocator gives
Form = list[Any]  # what JSON can hold: a kind, and what belongs to it

BANDS = {"L": 1, "LA": 2, "RGB": 3, "YCbCr": 3, "LAB": 3, "HSV": 3, "RGBA": 4, "CMYK": 4, "I;16": 1, "I": 1, "F": 1}
_WIDE_MODES = {"I;16": "<u2", "I": "=i4", "F": "=f4"}  # and their dtypes; a band of all other modes is one byte
_PLAIN = {"int": "<q", "float": "<d", "complex": "<2d", "bool": "<?"}
_ORIENTATION = 0x0112  # of EXIF


class CannotStore(Exception):
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
    """The sample as bytes. Raises CannotStore."""
    numbers: list[int] = []
    parts: list[bytes] = []
    form = _taken_apart(sample, "", numbers, parts)
    return Packed(form, tuple(numbers), b"".join(part + bytes(-len(part) % ALIGNMENT) for part in parts))


# ── writing ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _taken_apart(value: Any, place: str, numbers: list[int], parts: list[bytes]) -> Form:
    kind: type = type(value)
    if kind is tuple or kind is list:
        inner = [_taken_apart(item, f"{place}[{at}]", numbers, parts) for at, item in enumerate(value)]
        return [kind.__name__, inner]
    if kind is dict:
        for key in value:
            if type(key) not in (str, int):
                raise CannotStore(place, f"has the key {describe(key)}", "let keys be text or whole numbers")
        return ["dict", [[key, _taken_apart(item, f"{place}[{key!r}]", numbers, parts)] for key, item in value.items()]]
    if kind is Tensor:
        return _tensor_apart(value, place, numbers, parts)
    if kind is np.ndarray or kind is np.memmap:
        if value.dtype.kind not in "biufc":
            raise CannotStore(place, f"is an array of {value.dtype}", "return arrays of numbers")
        numbers.extend(value.shape)
        parts.append(value.tobytes())
        return ["array", value.dtype.str, value.ndim]
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
    if kind.__name__ in _PLAIN and kind.__module__ == "builtins":
        return _number_apart(value, place, parts)
    image = sys.modules.get("PIL.Image")  # a sample can be an image only where Pillow was loaded
    if image is not None and isinstance(value, image.Image):
        return _image_apart(value, place, numbers, parts)
    raise CannotStore(place, f"is {describe(value)}", "return tensors, arrays, numbers, text, images, plain containers")


def _number_apart(value: Any, place: str, parts: list[bytes]) -> Form:
    kind = type(value).__name__
    try:
        parts.append(struct.pack(_PLAIN[kind], *((value.real, value.imag) if kind == "complex" else (value,))))
    except struct.error:
        raise CannotStore(place, f"is {describe(value)}, which 64 bits do not hold", "return it as text") from None
    return [kind]


def _tensor_apart(tensor: Tensor, place: str, numbers: list[int], parts: list[bytes]) -> Form:
    if tensor.layout is not torch.strided or not tensor.is_cpu or tensor.requires_grad or tensor.is_quantized:
        what = f"is a tensor on {tensor.device} ({tensor.layout}, requires_grad={tensor.requires_grad})"
        raise CannotStore(place, what, "return dense tensors on the CPU, detached")
    numbers.extend(tensor.shape)
    flat = tensor.resolve_conj().resolve_neg().contiguous().reshape(-1)
    parts.append(flat.view(torch.uint8).numpy().tobytes())
    return ["tensor", str(tensor.dtype).removeprefix("torch."), tensor.dim()]


def _image_apart(image: Any, place: str, numbers: list[int], parts: list[bytes]) -> Form:
    if image.mode not in BANDS or "transparency" in image.info:
        fix = 'convert it first: image.convert("RGB"), or numpy.asarray(image) for the numbers of a palette'
        raise CannotStore(place, f"is an image of mode {image.mode}, or with a transparent colour", fix)
    if image.getexif().get(_ORIENTATION, 1) != 1:
        # A cache stores pixels, not EXIF: a later transpose would find no orientation.
        fix = "turn it in the steady part: PIL.ImageOps.exif_transpose(image)"
        raise CannotStore(place, "is an image that its EXIF data says to turn", fix)
    image.load()
    numbers.extend((image.height, image.width))
    parts.append(image.tobytes())
    return ["image", image.mode]


# ── reading ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class _Leaf:
    """How one leaf of a form is read.

    numbers: how many of a sample's numbers are for it. taken: bytes of its values, from these numbers; a number where
        they are always as many.
    view: (numbers, values, start) -> the leaf, where it lies in `values` (uint8). copy: of it, with its own memory.
    """

    numbers: int
    taken: int | Callable[[list[int]], int]
    view: Callable[[list[int], np.ndarray, int], Any]
    copy: Callable[[Any], Any]


class Unpacker:
    """Restores samples of one form. numbers: how many whole numbers each sample has in the index.

    Raises ValueError for a form that `packed` cannot have made.
    """

    def __init__(self, form: Form) -> None:
        self._leaves = [*map(_leaf, _leaves_of(form))]
        self.numbers, ends = 0, list[tuple[Any, Any, int, int]]()
        for leaf in self._leaves:
            ends.append((leaf.view, leaf.taken, self.numbers, self.numbers + leaf.numbers))
            self.numbers += leaf.numbers
        self._ends, self._assembled = ends, _assembler(form)

    def sample(self, numbers: list[int], values: np.ndarray) -> Any:
        """A sample with memory of its own: it can be changed in place."""
        views = self._views(numbers, values)
        return self._assembled(iter([leaf.copy(view) for leaf, view in zip(self._leaves, views, strict=True)]))

    def view(self, numbers: list[int], values: np.ndarray) -> Any:
        """The same without copying: tensors, arrays and images as read-only arrays of `values`.

        An image has the shape (height, width) or (height, width, bands); a tensor of a dtype that NumPy lacks
        (bfloat16) is an array of whole numbers with the same bits.
        """
        return self._assembled(iter(self._views(numbers, values)))

    def _views(self, numbers: list[int], values: np.ndarray) -> list[Any]:
        found, start = list[Any](), 0
        for view, taken, first, stop in self._ends:
            if type(taken) is int:
                found.append(view(numbers, values, start))
                start += taken
            else:
                own = numbers[first:stop]
                found.append(view(own, values, start))
                start += taken(own)
        return found


def padded(size: int) -> int:
    """Bytes up to where the next value begins."""
    return size + -size % ALIGNMENT


def _leaves_of(form: Form) -> Iterator[Form]:
    kind = form[0]
    if kind in ("tuple", "list", "dict"):
        for inner in form[1] if kind != "dict" else (inner for _, inner in form[1]):
            yield from _leaves_of(inner)
    else:
        yield form


def _assembler(form: Form) -> Callable[[Iterator[Any]], Any]:
    """Makes a sample in this form of its leaves, in their order."""
    kind = form[0]
    if kind not in ("tuple", "list", "dict"):
        return next
    if kind == "dict":
        pairs = [(key, _assembler(inner)) for key, inner in form[1]]
        return lambda made: {key: inner(made) for key, inner in pairs}
    parts = [*map(_assembler, form[1])]
    if kind == "list":
        return lambda made: [part(made) for part in parts]
    return lambda made: tuple([part(made) for part in parts])


def _leaf(form: Form) -> _Leaf:
    kind = form[0]
    if kind == "array":
        return _array(form[1], form[2], np.ndarray.copy)
    if kind == "tensor":
        return _tensor(form[1], form[2])
    if kind == "image":
        bands = BANDS[form[1]]
        return _array(_WIDE_MODES.get(form[1], "|u1"), 2, _image_of(form[1]), (bands,) if bands > 1 else ())
    if kind == "scalar":
        return _array(form[1], 0, lambda array: array[()])
    if kind == "none":
        return _Leaf(0, 0, lambda own, values, start: None, _same)
    if kind in _PLAIN:
        return _number(kind)
    if kind in ("str", "bytes"):
        return _text() if kind == "str" else _bytes()
    raise ValueError(f"no part of a sample: {kind}")


def _array(name: str, dims: int, copy: Callable[[np.ndarray], Any], bands: tuple[int, ...] = ()) -> _Leaf:
    dtype = np.dtype(name)
    if dtype.kind not in "biufc":  # bytes of a file must never be taken for objects
        raise ValueError(f"no dtype of numbers: {name}")
    unit = dtype.itemsize * prod(bands)

    def view(own: list[int], values: np.ndarray, start: int) -> np.ndarray:
        return np.ndarray([*own, *bands] if bands else own, dtype, values, start)

    def taken(own: list[int]) -> int:
        size = prod(own) * unit
        return size + -size % ALIGNMENT  # as `padded`, without a call for each array of each sample

    return _Leaf(dims, taken, view, copy)


def _tensor(name: str, dims: int) -> _Leaf:
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"no dtype of torch: {name}")
    try:
        stored = torch.empty(0, dtype=dtype).numpy().dtype
    except TypeError:  # NumPy has no such dtype
        stored = np.dtype(f"i{dtype.itemsize}")
    bits = torch.from_numpy(np.empty(0, stored)).dtype

    def copy(array: np.ndarray) -> Tensor:
        memory = torch.empty(array.shape, dtype=bits)
        memory.numpy()[...] = array
        return memory.view(dtype)

    return _array(stored.str, dims, copy)


def _number(kind: str) -> _Leaf:
    layout = struct.Struct(_PLAIN[kind])
    unpacked, size = layout.unpack_from, padded(layout.size)

    def view(own: list[int], values: np.ndarray, start: int) -> Any:
        found = unpacked(values.data, start)
        return complex(*found) if kind == "complex" else found[0]

    return _Leaf(0, size, view, _same)


def _bytes() -> _Leaf:
    def view(own: list[int], values: np.ndarray, start: int) -> bytes:
        return values[start : start + own[0]].tobytes()

    return _Leaf(1, lambda own: padded(own[0]), view, _same)


def _text() -> _Leaf:
    inner = _bytes()

    def view(own: list[int], values: np.ndarray, start: int) -> str:
        return inner.view(own, values, start).decode("utf-8", "surrogatepass")

    return _Leaf(1, inner.taken, view, _same)


def _image_of(mode: str) -> Callable[[np.ndarray], Any]:
    def image(array: np.ndarray) -> Any:
        from PIL import Image  # only a cache with images needs Pillow

        return Image.frombytes(mode, (array.shape[1], array.shape[0]), array.tobytes())

    return image


def _same(value: Any) -> Any:
    return value
