"""A sample as bytes, and the same sample again.

A sample is a form, numbers and values. The *form* says what it is made of: tuples, lists, dictionaries, and as their
leaves tensors, arrays, numbers, text or images with their types. Every sample of a cache has the same form, so it is
stored once. The *numbers* may differ: shapes and lengths. The *values* are plain bytes, each beginning at a multiple of
64, so that an array can be used where it lies.

| stored | comes back as |
|---|---|
| torch.Tensor on the CPU, dense, without gradient | the same dtype and shape, contiguous |
| numpy.ndarray and NumPy's own numbers, of bool, int, float or complex | the same dtype and shape, contiguous |
| int (64 bits), float, complex, bool, None, str, bytes | the same |
| PIL images in the modes of BANDS | a plain Image of the same mode, size and pixels; its `info` is not stored |

Subclasses (named tuples, tensors of torchvision) are refused: to restore them, code that a file names would have to be
imported. Whatever follows from the form alone is computed once.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hasten.errors import DataFailed
from hasten.facts.job import describe

ALIGNMENT = 64  # bytes: a cache line, and what torch's allocator gives
Form = list[Any]  # what JSON can hold: a kind, and what belongs to it

BANDS = {"L": 1, "LA": 2, "RGB": 3, "YCbCr": 3, "LAB": 3, "HSV": 3, "RGBA": 4, "CMYK": 4, "I;16": 1, "I": 1, "F": 1}
_WIDE_MODES = {"I;16": "<u2", "I": "=i4", "F": "=f4"}  # and their dtypes; a band of all other modes is one byte
_PLAIN = {"int": "<i8", "float": "<f8", "complex": "<c16", "bool": "|b1"}
_ORIENTATION = 0x0112  # of EXIF


@dataclass(frozen=True, slots=True)
class Packed:
    form: Form
    numbers: tuple[int, ...]
    values: bytes  # each value begins at a multiple of ALIGNMENT, and so does what follows


def packed(sample: Any, name: str) -> Packed:
    """The sample as bytes. Raises DataFailed for a value that has no place in the format. name: for the error."""
    numbers: list[int] = []
    parts: list[bytes] = []
    form = _form_of(sample, name, numbers, parts)
    return Packed(form, tuple(numbers), b"".join(part + bytes(-len(part) % ALIGNMENT) for part in parts))


def _form_of(value: Any, place: str, numbers: list[int], parts: list[bytes]) -> Form:
    """The form; adds the numbers and the values to the lists."""
    kind: type = type(value)
    if kind is tuple or kind is list:
        inner = [_form_of(item, f"{place}[{at}]", numbers, parts) for at, item in enumerate(value)]
        return [kind.__name__, inner]
    if kind is dict:
        for key in value:
            if type(key) not in (str, int):
                raise _refused(place, f"has the key {describe(key)}", "let keys be text or whole numbers")
        return ["dict", [[key, _form_of(item, f"{place}[{key!r}]", numbers, parts)] for key, item in value.items()]]
    if kind is Tensor:
        return _form_of_tensor(value, place, numbers, parts)
    if (kind is np.ndarray or kind is np.memmap) and value.dtype.kind in "biufc":
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
    if kind in (int, float, complex, bool) and not (kind is int and value.bit_length() > 63):
        parts.append(np.array(value, _PLAIN[kind.__name__]).tobytes())
        return [kind.__name__]
    if isinstance(value, np.generic) and value.dtype.kind in "biufc":
        parts.append(value.tobytes())
        return ["scalar", value.dtype.str]
    image = sys.modules.get("PIL.Image")  # a sample can be an image only where Pillow was loaded
    if image is not None and isinstance(value, image.Image):
        return _form_of_image(value, place, numbers, parts)
    fix = "return tensors, arrays, numbers of 64 bits, text, images, and plain containers of them"
    raise _refused(place, f"is {describe(value)}", fix)


def _form_of_tensor(tensor: Tensor, place: str, numbers: list[int], parts: list[bytes]) -> Form:
    if tensor.layout is not torch.strided or not tensor.is_cpu or tensor.requires_grad or tensor.is_quantized:
        what = f"is a tensor on {tensor.device} ({tensor.layout}, requires_grad={tensor.requires_grad})"
        raise _refused(place, what, "return dense tensors on the CPU, detached")
    numbers.extend(tensor.shape)
    flat = tensor.resolve_conj().resolve_neg().contiguous().reshape(-1)
    parts.append(flat.view(torch.uint8).numpy().tobytes())
    return ["tensor", str(tensor.dtype).removeprefix("torch."), tensor.dim()]


def _form_of_image(image: Any, place: str, numbers: list[int], parts: list[bytes]) -> Form:
    if image.mode not in BANDS or "transparency" in image.info:
        fix = 'convert it first: image.convert("RGB"), or numpy.asarray(image) for the numbers of a palette'
        raise _refused(place, f"is an image of mode {image.mode}, or with a transparent colour", fix)
    if image.getexif().get(_ORIENTATION, 1) != 1:
        # A cache stores pixels, not EXIF: a later transpose would find no orientation.
        fix = "turn it in the steady part: PIL.ImageOps.exif_transpose(image)"
        raise _refused(place, "is an image that its EXIF data says to turn", fix)
    image.load()
    numbers.extend((image.height, image.width))
    parts.append(image.tobytes())
    return ["image", image.mode]


def _refused(place: str, what: str, fix: str) -> DataFailed:
    return DataFailed(f"{place} {what}, which cannot be stored", fix=fix)


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
    """Restores samples of one form. numbers: how many whole numbers each sample has in the index. Raises ValueError for
    a form that `packed` cannot have made."""

    def __init__(self, form: Form) -> None:
        self._leaves = list[_Leaf]()
        self._assembled = _assembler(form, self._leaves)
        self.numbers, ends = 0, list[tuple[Any, Any, int, int]]()
        for leaf in self._leaves:
            ends.append((leaf.view, leaf.taken, self.numbers, self.numbers + leaf.numbers))
            self.numbers += leaf.numbers
        self._ends = ends

    def sample(self, numbers: list[int], values: np.ndarray) -> Any:
        """A sample with memory of its own: it can be changed in place."""
        views = self._views(numbers, values)
        return self._assembled(iter([leaf.copy(view) for leaf, view in zip(self._leaves, views, strict=True)]))

    def view(self, numbers: list[int], values: np.ndarray) -> Any:
        """The same without copying: tensors, arrays, images and numbers as read-only arrays of `values`, text as bytes.
        An image has the shape (height, width) or (height, width, bands); a tensor of a dtype that NumPy lacks
        (bfloat16) is an array of whole numbers with the same bits."""
        return self._assembled(iter(self._views(numbers, values)))

    def _views(self, numbers: list[int], values: np.ndarray) -> list[Any]:
        found, start = list[Any](), 0
        for view, taken, first, stop in self._ends:
            if type(taken) is int:
                found.append(view((), values, start))
                start += taken
            else:
                own = numbers[first:stop]
                found.append(view(own, values, start))
                start += taken(own)
        return found


def _assembler(form: Form, leaves: list[_Leaf]) -> Callable[[Iterator[Any]], Any]:
    """Makes a sample in this form of its leaves, in their order, which are added to the list."""
    kind = form[0]
    if kind == "dict":
        pairs = [(key, _assembler(inner, leaves)) for key, inner in form[1]]
        return lambda made: {key: inner(made) for key, inner in pairs}
    if kind in ("tuple", "list"):
        parts = [_assembler(inner, leaves) for inner in form[1]]
        if kind == "list":
            return lambda made: [part(made) for part in parts]
        return lambda made: tuple([part(made) for part in parts])
    leaves.append(_leaf(form))
    return next


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
    if kind in _PLAIN:
        return _array(_PLAIN[kind], 0, np.ndarray.item)
    if kind == "none":
        return _Leaf(0, 0, lambda own, values, start: None, _same)
    if kind == "bytes":
        return _Leaf(1, lambda own: _padded(own[0]), _bytes, _same)
    if kind == "str":
        return _Leaf(1, lambda own: _padded(own[0]), _bytes, lambda data: data.decode("utf-8", "surrogatepass"))
    raise ValueError(f"no part of a sample: {kind}")


def _padded(size: int) -> int:
    """Bytes up to where the next value begins."""
    return size + -size % ALIGNMENT


def _array(name: str, dims: int, copy: Callable[[np.ndarray], Any], bands: tuple[int, ...] = ()) -> _Leaf:
    dtype = np.dtype(name)
    if dtype.kind not in "biufc":  # bytes of a file must never be taken for objects
        raise ValueError(f"no dtype of numbers: {name}")
    unit = dtype.itemsize * prod(bands)

    def view(own: list[int], values: np.ndarray, start: int) -> np.ndarray:
        return np.ndarray([*own, *bands] if bands else own, dtype, values, start)

    def taken(own: list[int]) -> int:
        size = prod(own) * unit
        return size + -size % ALIGNMENT  # as `_padded`, without a call for each array of each sample

    return _Leaf(dims, taken if dims else _padded(unit), view, copy)


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


def _bytes(own: list[int], values: np.ndarray, start: int) -> bytes:
    return values[start : start + own[0]].tobytes()


def _image_of(mode: str) -> Callable[[np.ndarray], Any]:
    def image(array: np.ndarray) -> Any:
        from PIL import Image  # only a cache with images needs Pillow

        return Image.frombytes(mode, (array.shape[1], array.shape[0]), array.tobytes())

    return image


def _same(value: Any) -> Any:
    return value
