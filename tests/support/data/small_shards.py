"""Small shards for tests: samples that tell their own number, packed into a folder."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from hasten.data.shards.shard_writer import Packed, Samples, pack


class Numbered:
    """Sample i is an array that holds i, its number, and a text of i letters or so."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        return {"array": np.full((2, index % 3), index, dtype=np.int16), "cls": index, "text": "x" * (index % 700)}


NUMBERED = ("cls", "text.txt")  # as a form


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def picture(path: Path, colour: int) -> bytes:
    """Its bytes, which lie at the path now."""
    path.parent.mkdir(parents=True, exist_ok=True)
    written = io.BytesIO()
    Image.new("RGB", (8, 6), (colour, 0, 0)).save(written, "PNG" if path.suffix.lower() == ".png" else "JPEG")
    path.write_bytes(written.getvalue())
    return written.getvalue()


def packed_folder(folder: Path, count: int = 30, *, shard_bytes: int = 20_000, seed: int | None = 0) -> Path:
    """A folder of shards, `folder / "shards"`, of about eight samples each."""
    pack(Samples(Numbered(count)), folder / "shards", shard_bytes=shard_bytes, seed=seed)
    return folder / "shards"


def pack_samples(samples: list[Any], folder: Path, **options: Any) -> Packed:
    return pack(Samples(samples), folder, **({"shard_bytes": 1 << 20} | options))
