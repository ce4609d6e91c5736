"""Several folders of pictures as one, one after another: what a ConcatDataset of hasten.ImageFolder is read as.

A ConcatDataset asks its parts for one sample at a time, which is neither given its random numbers nor put together with
others by the thread that decodes it, and a cache would have to guess which part of it stays the same. As one folder
they are read as fast as one.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from hasten.data.cache.cache_key import key_of
from hasten.data.images.crops import View
from hasten.data.images.image_files import Kept, Picture, kept


class JoinedPictures:
    """The same map-style data set that PictureFiles is, over several of them or of PictureShards.

    Each sample keeps the label that it has in its own folder, as in a ConcatDataset.
    """

    steady_reason = "a file decodes to the same pixels every time"

    def __init__(self, parts: Sequence[Any], view: View) -> None:
        self.root = ", ".join(str(part.root) for part in parts)
        self._parts, self._view, self._ends = list(parts), view, [*accumulate(map(len, parts))]

    def __len__(self) -> int:
        return self._ends[-1]

    def __getitem__(self, index: int) -> Kept:
        return kept(self._view, *self.labelled(index))

    def labelled(self, index: int) -> tuple[Picture, int]:
        if not -len(self) <= index < len(self):
            raise IndexError(f"picture {index} of {len(self)}")
        index %= len(self)
        part = bisect_right(self._ends, index)
        return self._parts[part].labelled(index - (self._ends[part - 1] if part else 0))

    def cache_key(self) -> str:
        """Changes with each of them, and with their order."""
        return key_of(tuple(part.cache_key() for part in self._parts), 1)
