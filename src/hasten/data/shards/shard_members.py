"""The members of a sample in a shard: which member a value becomes, and which value a member's bytes are.

| extension | read as | written for |
|---|---|---|
| npy | NumPy array | arrays, and tensors on the CPU; no objects |
| cls | int | whole numbers |
| json | what JSON says | float, bool, None, and dictionaries and lists of these, of whole numbers and of text |
| txt | str | text |
| anything else | bytes | bytes; as jpg or png where they begin as such a file |

Of an extension with dots in it, such as "left.npy", the last part decides. Nothing is unpickled: a pickle is a program.
A shard's content is untrusted: text has a largest size, memory is filled only with bytes that are there, and every
failure is a ValueError.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from torch import Tensor

from hasten.data.shards.tar_reader import KEY

LARGEST_TEXT = 1 << 24  # bytes of a JSON or text member: as objects they take many times their size
PICKLES = frozenset({"pyd", "pickle", "pkl", "pth", "pt"})

_BEGINNINGS = {b"\xff\xd8\xff": "jpg", b"\x89PNG\r\n\x1a\n": "png"}

Decode = Callable[[bytes], Any]


def decoded(extension: str, content: bytes) -> Any:
    """The value of a member. Raises ValueError for content that is not what its extension says, and for a pickle."""
    last = extension.rpartition(".")[2]
    if last in PICKLES:
        raise ValueError("it is a pickle, which would run whatever it says; pack it as .npy or .json")
    known = _DECODERS.get(last)
    return content if known is None else known(content)


def encoded(sample: Any) -> dict[str, bytes]:
    """A sample of a map-style data set as members: extension to content, in their order.

    A dictionary keeps its names: {"image": array, "label": 3} becomes image.npy and label.cls; {"jpg": bytes, "cls": 3}
    is not changed. The parts of a tuple or list are numbered: 0.npy, 1.cls. Any other value is a tuple of one part.

    Raises ValueError for a value that has no member, or would not come back equal.
    """
    row = sample if isinstance(sample, tuple | list) else [sample]
    parts = sample if isinstance(sample, Mapping) else dict(enumerate(row))
    found: dict[str, bytes] = {}
    for name, value in parts.items():
        if name == KEY:
            raise ValueError(f"it has a {KEY}, which packing would replace by a number: leave it out, or rename it")
        extension, content = _member(str(name), value)
        if not re.fullmatch(r"[a-z0-9][a-z0-9_-]*(\.[a-z0-9_-]+)*", extension) or len(extension) > 60:
            raise ValueError(f"{name!r} cannot be an extension: use small letters, digits and _, 60 at most")
        if extension in found:
            raise ValueError(f"it has two parts {extension!r}")
        found[extension] = content
    if not found:
        raise ValueError("it is empty")
    return found


def _member(name: str, value: Any) -> tuple[str, bytes]:
    kind, content = _written(value)
    last = name.rpartition(".")[2]
    says_it = last == kind or (last, kind) == ("jpeg", "jpg")
    is_free = kind == "bin" and not last.isdigit() and last not in (*_DECODERS, *PICKLES)  # read as bytes all the same
    return (name if says_it or is_free else f"{name}.{kind}"), content


def _written(value: Any) -> tuple[str, bytes]:
    """The extension and the content of a value."""
    if isinstance(value, Tensor):
        try:
            value = value.detach().numpy()
        except (TypeError, RuntimeError) as error:  # on an accelerator, sparse, or of a type that NumPy lacks
            raise ValueError(f"a tensor of {value.dtype} on {value.device} cannot become an array: {error}") from None
    if isinstance(value, np.generic) and not isinstance(value, np.integer):
        value = np.asarray(value)
    if isinstance(value, np.ndarray) and type(value) in (np.ndarray, np.memmap):
        return "npy", _as_npy(value)
    if isinstance(value, bool | float | dict | list) or value is None:
        return "json", _as_json(value)
    if isinstance(value, int | np.integer):
        if not -(10**18) < value < 10**18:
            raise ValueError(f"{value} is too large a whole number")
        return "cls", str(int(value)).encode()
    if isinstance(value, str):
        return "txt", _text(value.encode())
    if isinstance(value, bytes):
        return next((kind for start, kind in _BEGINNINGS.items() if value.startswith(start)), "bin"), value
    kind = f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
    raise ValueError(f"{kind} has no member; give arrays, tensors, numbers, text, bytes, or lists of plain values")


def _as_npy(value: np.ndarray) -> bytes:
    if value.dtype.hasobject or not value.dtype.itemsize:
        raise ValueError(f"an array of {value.dtype} cannot be written without pickling it")
    file = io.BytesIO()
    np.lib.format.write_array(file, value, version=(1, 0), allow_pickle=False)
    return file.getvalue()


def _as_json(value: Any) -> bytes:
    try:
        content = json.dumps(value, ensure_ascii=False).encode()
    except (TypeError, RecursionError) as error:
        raise ValueError(f"it cannot be JSON: {error}") from None
    if repr(json.loads(content)) != repr(value):
        raise ValueError("it would not come back equal from JSON: use lists for tuples, and text for names")
    return _text(content)


def _npy(content: bytes) -> np.ndarray:
    """An array of its own, which may be written to."""
    try:
        return np.lib.format.read_array(io.BytesIO(content), allow_pickle=False)
    except Exception as error:  # NumPy takes the header for Python's own notation, and raises what its parsers raise
        raise ValueError(f"it is not a NumPy array: {error}") from None


def _cls(content: bytes) -> int:
    if not re.fullmatch(rb"\s*-?[0-9]{1,18}\s*", content):
        raise ValueError(f"it holds {content[:40]!r}, and no whole number")
    return int(content)


def _json(content: bytes) -> Any:
    try:
        return json.loads(_text(content))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _text(content: bytes) -> bytes:
    if len(content) > LARGEST_TEXT:
        raise ValueError(f"it has {len(content):,} bytes; {LARGEST_TEXT:,} are the most of a text")
    return content


_DECODERS: Mapping[str, Decode] = {"npy": _npy, "cls": _cls, "json": _json, "txt": lambda text: _text(text).decode()}
