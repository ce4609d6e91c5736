"""Which part of an image a sample shows: decided from its height, its width and a few random numbers, nothing else.

So the same sample of the same epoch shows the same part wherever and by whomever it is read, from a file or from a
cache.

Sources: random resized crops from Szegedy et al., "Going deeper with convolutions", 2015, in the form that they have in
torchvision's RandomResizedCrop.get_params; CenterCrop is torchvision's Resize followed by its CenterCrop.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from hasten.data.order.randomness import mixed
from hasten.errors import Misconfigured
from hasten.facts.job import describe

ATTEMPTS = 10


class Box(NamedTuple):
    """A rectangle of an image in whole pixels, and whether what is in it is mirrored left to right."""

    top: int
    left: int
    height: int
    width: int
    mirrored: bool = False

    def at(self, denominator: int) -> Box:
        """The same part of the image decoded at one over a denominator of its size, rounded outwards."""
        bottom, right = -(-(self.top + self.height) // denominator), -(-(self.left + self.width) // denominator)
        top, left = self.top // denominator, self.left // denominator
        return Box(top, left, bottom - top, right - left, self.mirrored)


class View(Protocol):
    """size: height and width of what is shown, in pixels. draws: how many random numbers a box takes.

    box(height, width, draws): of an image of that size; draws are uniform in [0, 1).
    smallest(height, width): height and width that no box of it goes below.
    """

    @property
    def size(self) -> int: ...

    @property
    def draws(self) -> int: ...

    def box(self, height: int, width: int, draws: Sequence[float]) -> Box: ...

    def smallest(self, height: int, width: int) -> tuple[int, int]: ...


@dataclass(frozen=True, slots=True)
class RandomResizedCrop:
    """A part of random area, shape and place, resized to size × size pixels, and mirrored with probability `flip`.

    size: of the result's sides, in pixels.
    scale: smallest and largest share of the image's area.
    ratio: narrowest and widest width over height.
    flip: probability, 0 to 1.

    After ten attempts that do not fit into the image, the largest middle part of an allowed shape is taken.
    """

    size: int
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    flip: float = 0.5

    def __post_init__(self) -> None:
        _check_size(self.size)
        _check(0 < self.scale[0] <= self.scale[1] <= 1, self, "scale", "two shares of the area, 0 to 1: (0.08, 1.0)")
        _check(0 < self.ratio[0] <= self.ratio[1], self, "ratio", "the narrowest and widest shape: (0.75, 1.333)")
        _check(0 <= self.flip <= 1, self, "flip", "a probability, 0 to 1")

    @property
    def draws(self) -> int:
        return 4 * ATTEMPTS + 1

    def box(self, height: int, width: int, draws: Sequence[float]) -> Box:
        mirrored = draws[-1] < self.flip
        low, high = math.log(self.ratio[0]), math.log(self.ratio[1])
        for attempt in range(0, 4 * ATTEMPTS, 4):
            share = self.scale[0] + (self.scale[1] - self.scale[0]) * draws[attempt]
            shape = math.exp(low + (high - low) * draws[attempt + 1])
            area = height * width * share
            wide, tall = round(math.sqrt(area * shape)), round(math.sqrt(area / shape))
            if 0 < wide <= width and 0 < tall <= height:
                top = int(draws[attempt + 2] * (height - tall + 1))
                left = int(draws[attempt + 3] * (width - wide + 1))
                return Box(top, left, tall, wide, mirrored)
        tall, wide = self._largest(height, width)
        return Box((height - tall) // 2, (width - wide) // 2, tall, wide, mirrored)

    def smallest(self, height: int, width: int) -> tuple[int, int]:
        area = height * width * self.scale[0]
        tall, wide = self._largest(height, width)
        return (
            min(tall, max(1, round(math.sqrt(area / self.ratio[1])))),
            min(wide, max(1, round(math.sqrt(area * self.ratio[0])))),
        )

    def _largest(self, height: int, width: int) -> tuple[int, int]:
        """Height and width of the largest part of an allowed shape."""
        if width < self.ratio[0] * height:
            return max(1, min(height, round(width / self.ratio[0]))), width
        if width > self.ratio[1] * height:
            return height, max(1, min(width, round(height * self.ratio[1])))
        return height, width


@dataclass(frozen=True, slots=True)
class CenterCrop:
    """The middle square, resized to size × size pixels: what evaluations look at.

    size: of the result's sides, in pixels.
    resize: to how many pixels the image's shorter side would be brought before the middle is cut out; the larger, the
        less is seen. None: size × 8 / 7, the usual 256 for 224.
    """

    size: int
    resize: int | None = None

    def __post_init__(self) -> None:
        _check_size(self.size)
        _check(self.resize is None or self.resize >= self.size, self, "resize", "the size or more, or None")

    @property
    def draws(self) -> int:
        return 0

    def box(self, height: int, width: int, draws: Sequence[float] = ()) -> Box:
        side = max(1, round(min(height, width) * self.size / (self.resize or self.size * 8 / 7)))
        return Box((height - side) // 2, (width - side) // 2, side, side)

    def smallest(self, height: int, width: int) -> tuple[int, int]:
        side = self.box(height, width).height
        return side, side


def draws_of(numbers: np.ndarray, count: int) -> list[list[float]]:
    """For each number (uint64, shape (n,)) `count` uniform ones in [0, 1) that follow from it alone."""
    if count == 0:
        return [[]] * len(numbers)
    mixed_up = mixed(numbers[:, None] ^ mixed(np.arange(count, dtype=np.uint64)))
    return ((mixed_up >> np.uint64(11)) * 2.0**-53).tolist()


def sufficient(height: int, width: int, size: int, denominators: Sequence[int]) -> int:
    """The largest denominator at which a part of height × width pixels still has size × size; else the smallest."""
    enough = [each for each in denominators if height // each >= size and width // each >= size]
    return max(enough, default=min(denominators))


def check_view(view: Any) -> None:
    """Raises Misconfigured for what is no view."""
    # A class has the members too: it is the commonest slip to leave its brackets out.
    if isinstance(view, type) or not all(hasattr(view, name) for name in ("size", "draws", "box", "smallest")):
        what = f"the view of an ImageFolder is {describe(view)}, which does not select a part of the image"
        fix = "use hasten.RandomResizedCrop(224) for training, hasten.CenterCrop(224) for evaluation, or your own view"
        raise Misconfigured(what, fix=fix)
    _check_size(view.size)


def _check_size(size: object) -> None:
    if not isinstance(size, int) or isinstance(size, bool) or size < 1:
        raise Misconfigured(f"the size of a view is {size!r}", fix="write its side in pixels: 224")


def _check(fits: bool, view: Any, name: str, write: str) -> None:
    if not fits:
        raise Misconfigured(f"{type(view).__name__}.{name} is {getattr(view, name)}", fix=f"write {write}")
