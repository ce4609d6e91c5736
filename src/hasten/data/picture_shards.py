"""Pictures and labels out of WebDataset tar shards, for hasten.ImageFolder.

A sample is whichever picture member it has, and its class number in the member .cls, as `hasten pack` writes a folder
of class folders and as most published shards have them. The order is the shards' own: shuffled within a buffer.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hasten.data.cache_key import key_of
from hasten.data.crops import View
from hasten.data.decode import MOST_PIXELS, Encoded
from hasten.data.picture_files import EXTENSIONS, Kept, kept
from hasten.data.shard_index import MANIFEST
from hasten.data.shard_order import ShardOrder
from hasten.data.shards import Shards

_FORM = (";".join(sorted(extension[1:] for extension in EXTENSIONS)), "cls")


class PictureShards:
    """The same map-style data set that PictureFiles is, over shards."""

    steady_reason = "a shard holds the same bytes every time"

    def __init__(self, shards: Path, view: View, most_pixels: int = MOST_PIXELS) -> None:
        self.root, self._view, self._most_pixels = shards, view, most_pixels
        self._shards = Shards(shards, form=_FORM)

    @property
    def classes(self) -> Sequence[str]:
        """Their names; none where the shards do not know them."""
        return self._shards.classes or ()

    def __len__(self) -> int:
        return len(self._shards)

    def __getitem__(self, index: int) -> Kept:
        return kept(self._view, *self.labelled(index))

    def labelled(self, index: int) -> tuple[Encoded, int]:
        content, label = self._shards[index]
        return Encoded(content, f"{self.root}, sample {index}", self._most_pixels), label

    def sample_order(self, seed: int, shuffle: bool) -> ShardOrder:
        return self._shards.sample_order(seed, shuffle)

    def cache_key(self) -> str:
        """Changes with the shards, the sizes asked for, and the decoders."""
        return key_of((self._shards.cache_key(), self._view, self._most_pixels), 1)


def holds_shards(folder: Path) -> bool:
    return (folder / MANIFEST).exists() or any(folder.glob("*.tar"))
