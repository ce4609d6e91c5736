"""Caches that tests write, and what they write into them and do to them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from hasten.data.cache.cache_file import Writer
from hasten.data.cache.sample_format import packed


def written(folder: Path, samples: list, key: str = "key") -> Path:
    folder.mkdir(exist_ok=True)
    writer = Writer(folder, key)
    try:
        for sample in samples:
            writer.add(packed(sample, "it"))
        writer.finish()
    finally:
        writer.abandon()
    return folder


def ragged(number: int) -> tuple:
    return torch.arange(number + 1.0), {"name": "n" * number, "picture": np.full((number % 3 + 1, 4), number, np.uint8)}


def row(number: int) -> dict:
    return {"row": torch.full((2, 3), number), "label": number, "weight": np.float32(number), "good": number % 2 == 0}


def change(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1 << (position % 8)
    path.write_bytes(data)
