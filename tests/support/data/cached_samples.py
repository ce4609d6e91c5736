"""Samples of every kind that a cache keeps, whether two are the same bit for bit, and data sets made of them."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from hasten.data.cache.cache_key import key_of

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


def picture(mode: str, seed: int) -> Image.Image:
    width, height = 1 + seed % 5, 1 + seed % 3
    size = len(Image.new(mode, (width, height)).tobytes())
    return Image.frombytes(mode, (width, height), np.random.default_rng(seed).bytes(size))
