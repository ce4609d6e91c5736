"""A data set in two parts: what is always the same, and what is done to it anew each time.

Most training data is read and decoded, which gives the same sample every time, and then cropped, flipped or masked at
random, which must not. Only the writer of the data set knows where the one ends and the other begins, so the seam is
written down:

    train=hasten.Augmented(Photos("photos/train"), random_crop_and_flip)

The first part, the *steady* one, can then be kept decoded on disk (the technique `cache`) without freezing the second.
Nothing else changes: a sample is what `transform(Photos(...)[index])` is, with the same random numbers.

The seam is two members, which any map-style data set may have: the property `steady`, its steady part, which is a
map-style data set as well, and the method `with_steady`, which gives the same data set on top of another steady part.
A third one, `steady_rows`, is for a data set that has only some samples of its steady part: which ones, in its order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch.utils.data import Subset

from hasten.data.order.sample_order import SampleOrder
from hasten.data.sources.known_steady import steady_reason
from hasten.data.sources.sample_indices import rows_of


class Augmented:
    """A map-style data set: sample i is transform(dataset[i]).

    dataset: map-style; its sample i is always the same.
    transform: may draw random numbers, from torch's, NumPy's or Python's global generator, and may change its argument
        in place.
    version: raise it where samples change in a way that the key of a cache does not see, as by another module: a cache
        of another version is not used.
    """

    def __init__(self, dataset: Any, transform: Callable[[Any], Any], *, version: int = 0) -> None:
        self.dataset, self.transform, self.version = dataset, transform, version

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        return self.transform(self.dataset[index])

    @property
    def steady(self) -> Any:
        """The part whose samples are always the same."""
        return self.dataset

    @property
    def sample_order(self) -> Callable[[int, bool], SampleOrder] | None:
        """The steady part's own order, where it has one."""
        return getattr(self.dataset, "sample_order", None)

    def with_steady(self, replacement: Any) -> Augmented:
        """The same transform on top of another steady part."""
        return Augmented(replacement, self.transform, version=self.version)


@dataclass(frozen=True, slots=True)
class Seam:
    """Where a data set can be cut: its steady part, and the whole again on top of a replacement for it."""

    steady: Any
    rejoined: Callable[[Any], Any]
    whole: bool = False  # nothing is done anew: every sample is always the same
    version: int = 0  # of the steady part


def seam_of(dataset: Any) -> Seam | None:
    """Where this data set can be cut, also under Subset (random_split); None where nothing is known of it.

    A data set without a seam that is known to draw nothing (known_steady.py) is steady as a whole.
    """
    if type(dataset) is Subset:
        # The steady part is that of the whole data set: what lies around it may count on every index.
        inner = seam_of(dataset.dataset)
        if inner is None:
            return None
        return Seam(
            inner.steady, lambda kept: Subset(inner.rejoined(kept), dataset.indices), inner.whole, inner.version
        )
    if callable(getattr(dataset, "with_steady", None)) and hasattr(dataset, "steady"):
        return Seam(dataset.steady, dataset.with_steady, version=getattr(dataset, "version", 0))
    return None if steady_reason(dataset) is None else Seam(dataset, lambda kept: kept, whole=True)


def steady_rows(dataset: Any) -> np.ndarray | None:
    """Which sample of its steady part each sample of a data set with a seam is: int64; None for all of them in order.

    Of a data set of the user's that does not say, it is taken to be all of them. Raises DataFailed for a Subset of what
    is not there.
    """
    if type(dataset) is Subset:
        own = rows_of(dataset.indices, len(dataset.dataset), whose="a Subset")  # pyright: ignore[reportArgumentType]
        inner = steady_rows(dataset.dataset)
        return own if inner is None else inner[own]
    rows = getattr(dataset, "steady_rows", None)
    return None if rows is None else rows_of(rows, len(dataset.steady), whose="steady_rows")
