"""Samples of every kind that a cache keeps, whether two are the same bit for bit, and data sets made of them."""

from __future__ import annotations

import random
import textwrap
import types
from pathlib import Path
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from PIL import Image

from hasten.data.cache.cache_key import key_of

TORCH_DTYPES = [
    *(torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.float8_e4m3fn),
    *(torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.bool, torch.complex64),
]
NUMPY_DTYPES = ["<f4", "<f8", "<f2", "|u1", "|i1", "<i2", "<u4", "<i8", "|b1", "<c8", ">f4", ">i2"]
MODES = ["L", "LA", "RGB", "YCbCr", "LAB", "HSV", "RGBA", "CMYK", "I;16", "I", "F"]


class Listed:
    """A data set of the samples that it was given; every reading gives copies."""

    def __init__(self, samples: list[Any]) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Any:
        return copied(self.samples[index])


class Grey:
    """Pictures of 3 × 4 grey pixels and their number: steady, and made anew at every reading."""

    def __init__(self, count: int = 9) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.full((1, 3, 4), index, dtype=torch.uint8), index


class Counted(Grey):
    """Writes down every reading, in whichever process it happens."""

    def __init__(self, log: Path, name: str = "a", count: int = 40) -> None:
        super().__init__(count)
        self.log, self.name = log, name

    def cache_key(self) -> str:
        return self.name  # the log changes at every reading

    def __getitem__(self, index: int) -> Any:
        with open(self.log, "ab", buffering=0) as log:
            log.write(f"{index} ".encode())
        return super().__getitem__(index)

    def readings(self) -> int:
        return len(self.log.read_text().split()) if self.log.exists() else 0


class Holding:
    """A data set with one attribute."""

    def __init__(self, part: object) -> None:
        self.part = part

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> int:
        return index


def key(part: object) -> str:
    return key_of(Holding(part), 1)


def made(source: str, name: str = "transform", **names: object) -> Any:
    """What code, given as text, calls by this name, as if a module of the user's own held it."""
    module = types.ModuleType("users_code")
    module.__dict__.update(names)
    exec(textwrap.dedent(source), module.__dict__)
    return module.__dict__[name]


def samples_of(dataset: Any) -> list[Any]:
    return [dataset[index] for index in range(len(dataset))]


def jittered(sample: tuple[torch.Tensor, int]) -> tuple[torch.Tensor, int, torch.Tensor]:
    """A transform that draws from all three global generators, and changes its argument in place."""
    picture, number = sample
    picture += np.random.randint(0, 9)
    draws = [torch.rand(()).item(), np.random.rand(), random.random()]
    return picture, number, torch.tensor(draws, dtype=torch.float64)


def copied(value: Any) -> Any:
    if isinstance(value, tuple | list):
        return type(value)(copied(item) for item in value)
    if isinstance(value, dict):
        return {key: copied(item) for key, item in value.items()}
    if isinstance(value, torch.Tensor):
        return value.clone(memory_format=torch.preserve_format)
    return value.copy() if isinstance(value, np.ndarray | Image.Image) else value


def same(one: Any, other: Any) -> bool:
    """The same type all the way down, and the same bits; arrays may lie in memory in another order."""
    if type(one) is not type(other):
        return False
    if isinstance(one, tuple | list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return [*one] == [*other] and all(same(one[key], other[key]) for key in one)
    if isinstance(one, torch.Tensor):
        facts = [(value.dtype, value.shape) for value in (one, other)]
        return facts[0] == facts[1] and _bits(one) == _bits(other)
    if isinstance(one, np.ndarray):
        facts = [(value.dtype.str, value.shape) for value in (one, other)]
        return facts[0] == facts[1] and one.tobytes() == other.tobytes()
    if isinstance(one, Image.Image):
        return (one.mode, one.size, one.tobytes(), one.getpalette()) == (
            *(other.mode, other.size, other.tobytes(), other.getpalette()),
        )
    if isinstance(one, float | np.generic):
        return np.asarray(one).tobytes() == np.asarray(other).tobytes()  # NaN too
    return repr(one) == repr(other)


def _bits(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


# ── any sample ──────────────────────────────────────────────────────────────────────────────────────────────────────
# A form is a function from a seed to a sample: what differs between the samples of a data set follows from the seed.


def _noise(seed: int, size: int) -> bytes:
    return np.random.default_rng(seed).bytes(size)


def _tensor(dtype: torch.dtype, dims: int, order: int, ragged: bool) -> Any:
    def made(seed: int) -> torch.Tensor:
        shape = _shape(seed if ragged else 0, dims)
        length = int(np.prod(shape, dtype=np.int64))
        if dtype == torch.bool:
            return torch.from_numpy(np.frombuffer(_noise(seed, length), np.uint8) > 127).reshape(shape)
        data = torch.frombuffer(bytearray(_noise(seed, length * dtype.itemsize) or b"\0" * 16), dtype=dtype)
        return data[:length].reshape(shape).permute(_permutation(dims, order))

    return made


def _array(dtype: str, dims: int, order: int, ragged: bool) -> Any:
    def made(seed: int) -> np.ndarray:
        shape = _shape(seed if ragged else 0, dims)
        length = int(np.prod(shape, dtype=np.int64))
        if dtype == "|b1":
            return (np.frombuffer(_noise(seed, length), np.uint8) > 127).reshape(shape)
        data = np.frombuffer(_noise(seed, length * np.dtype(dtype).itemsize), dtype).reshape(shape).copy()
        return data.transpose(_permutation(dims, order))

    return made


def _shape(seed: int, dims: int) -> tuple[int, ...]:
    return tuple(np.random.default_rng((seed, dims)).integers(0, 5, dims).tolist())


def _permutation(dims: int, order: int) -> tuple[int, ...]:
    return tuple(np.random.default_rng(order).permutation(dims).tolist())


def _picture(mode: str) -> Any:
    return lambda seed: picture(mode, seed)


def picture(mode: str, seed: int) -> Image.Image:
    width, height = 1 + seed % 5, 1 + seed % 3
    size = len(Image.new(mode, (width, height)).tobytes())
    return Image.frombytes(mode, (width, height), _noise(seed, size))


_DIMS = {"dims": st.integers(0, 4), "order": st.integers(0, 9), "ragged": st.booleans()}
ENDS = st.one_of(
    st.builds(_tensor, st.sampled_from(TORCH_DTYPES), **_DIMS),
    st.builds(_array, st.sampled_from(NUMPY_DTYPES), **_DIMS),
    st.builds(_picture, st.sampled_from(MODES)),
    st.sampled_from(
        [
            lambda seed: seed - 5,
            lambda seed: (-1) ** seed * 2**62 + seed,
            lambda seed: float("nan") if seed % 2 else -0.0 + seed,
            lambda seed: complex(seed, -0.0),
            lambda seed: seed % 2 == 0,
            lambda seed: "ä\udc80\0" * seed,
            lambda seed: _noise(seed, seed),
            lambda seed: np.float32(seed),
            lambda seed: np.int8(seed),
            lambda seed: np.uint16(seed),
            lambda seed: None,
        ]
    ),
)
FORMS = st.recursive(
    ENDS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda made: lambda seed: [each(seed) for each in made]),
        st.lists(inner, max_size=3).map(lambda made: lambda seed: tuple(each(seed) for each in made)),
        st.dictionaries(st.text(max_size=3) | st.integers(-3, 3), inner, max_size=3).map(
            lambda made: lambda seed: {key: each(seed) for key, each in made.items()}
        ),
    ),
    max_leaves=6,
)
