"""Images and labels out of WebDataset tar shards, for hasten.ImageFolder.

A sample is whichever image member it has, and its class number in the member .cls, as `hasten pack` writes a folder
of class folders and as most published shards have them.
"""

from __future__ import annotations

from pathlib import Path

from hasten.data.cache.cache_key import key_of
from hasten.data.images.crops import View
from hasten.data.images.image_decoder import DECODING, MOST_PIXELS, Encoded
from hasten.data.images.image_files import EXTENSIONS, Levels, class_folders, levels_of
from hasten.data.shards.shard_dataset import Shards
from hasten.data.shards.shard_index import read_manifest
from hasten.errors import DataFailed

_FORM = (";".join(sorted(extension[1:] for extension in EXTENSIONS)), "cls")


class ImageShards:
    """The same map-style data set that ImageFiles is, over shards."""

    steady_reason = "a shard holds the same bytes every time"

    def __init__(self, shards: Path, view: View, most_pixels: int = MOST_PIXELS) -> None:
        self.root, self._view, self._most_pixels = shards, view, most_pixels
        self._shards = Shards(shards, form=_FORM)
        self.classes = self._shards.classes or ()  # their names; none where the shards do not know them
        self.sample_order = self._shards.sample_order

    def __len__(self) -> int:
        return len(self._shards)

    def __getitem__(self, index: int) -> Levels:
        return levels_of(self._view, *self.labelled(index))

    def labelled(self, index: int) -> tuple[Encoded, int]:
        content, label = self._shards[index]
        return Encoded(content, f"{self.root}, sample {index}", self._most_pixels), label

    def cache_key(self) -> str:
        """Changes with the shards, the sizes asked for, and the decoders."""
        return key_of((self._shards.cache_key(), self._view, self._most_pixels), DECODING)


def holds_shards(folder: Path) -> bool:
    """Whether a folder is read as shards: it has an index of them, or tar files and no class folders."""
    if not folder.is_dir():
        return False
    try:
        read_manifest(folder)
    except DataFailed:  # none, or another program's: many write a file of this name
        return not class_folders(folder) and any(folder.glob("*.tar"))
    return True
