"""Images in class folders, decoded as fast as the machine can and shown a part at a time.

    train = hasten.ImageFolder("photos/train", hasten.RandomResizedCrop(224))
    valid = hasten.ImageFolder("photos/valid", hasten.CenterCrop(224))

The folder may also be one of WebDataset shards, as `hasten pack` writes them.

Batches are (images, labels): float32 (N, 3, size, size), normalised by mean and standard deviation, and int64 (N,).
The pixels are those that torchvision's ImageFolder gives with the same crop, Pillow's BILINEAR, ToTensor and Normalize,
within one level of 255; turned the right way up, which torchvision does not do, and greys of 16 bits not cut off. A
JPEG that is much larger than what is shown of it is decoded at a half, a quarter or an eighth of its size.
"""

# ruff: noqa: SLF001  Copies of a data set are given their fields.

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from hasten.data.images.batch_memory import BatchMemory
from hasten.data.images.crops import View, check_view, draws_of, sufficient
from hasten.data.images.image_batches import (
    Colours,
    Cropped,
    FillBytes,
    FillCanvas,
    FillChannelsLast,
    Filling,
    FillPixels,
    MakeFilling,
    Shown,
    resize_together,
)
from hasten.data.images.image_decoder import MOST_PIXELS
from hasten.data.images.image_files import CachedImages, ImageFiles
from hasten.data.images.image_shards import ImageShards, holds_shards
from hasten.data.loading.loader_options import Placement
from hasten.data.order.sample_order import SampleOrder
from hasten.data.sources.sample_indices import rows_of
from hasten.errors import Misconfigured
from hasten.kernels.resampling.resized_crop import why_plain

IMAGENET_MEAN, IMAGENET_DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class ImageFolder(Dataset[tuple[Tensor, int]]):
    """root: a folder with one folder of images for each class, as `scan` reads it; or a folder of tar shards. A "~"
        at its start is the user's home.

    view: what of an image is shown: RandomResizedCrop, CenterCrop, or a record of your own with the same members.
    mean, deviation: of the three colours, on a scale from 0 to 1; the defaults are ImageNet's.
    most_pixels: larger images are refused before memory is asked for.

    Raises Misconfigured for what is no view and no three numbers; DataFailed when there is no class, or a class without
    images. Reading a sample raises DataFailed for a file that is damaged, empty, too large or no image. `classes` are
    the names of the labels; empty where shards lack them.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        view: View,
        *,
        mean: Sequence[float] = IMAGENET_MEAN,
        deviation: Sequence[float] = IMAGENET_DEVIATION,
        most_pixels: int = MOST_PIXELS,
    ) -> None:
        check_view(view)
        self.root, self.view = Path(os.path.expanduser(root)), view
        kind = ImageShards if holds_shards(self.root) else ImageFiles
        self._images: ImageFiles | ImageShards | CachedImages = kind(self.root, view, most_pixels)
        self.steady: Any = self._images  # what the files decode to, a map-style data set: the same every time
        self.classes = list(self.steady.classes)
        if len(mean) != 3 or len(deviation) != 3 or min(deviation) <= 0:
            what = f"mean is {mean} and deviation {deviation}"
            raise Misconfigured(what, fix="give three numbers each, the deviations above 0")
        self._colours = Colours.of(mean, deviation)
        self._chosen: np.ndarray | None = None  # int64: which of the images are samples; None for all
        self._filling: MakeFilling = FillPixels
        self.notices: tuple[str, ...] = ()  # what does not run as it could here, and why; known once it is placed
        self._memory = BatchMemory()

    def __len__(self) -> int:
        return len(self.steady if self._chosen is None else self._chosen)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        """One sample for any other loader: float32 (3, size, size) and its label. Where the view takes random numbers,
        they follow from one of torch's generator."""
        number = torch.randint(2**63 - 1, (1,)) if self.view.draws else torch.zeros(1, dtype=torch.int64)
        filling = FillPixels(1, self.view.size, self._colours, BatchMemory())
        self.fill(filling, 0, index, self.draws(number.numpy().astype(np.uint64))[0])
        images, labels = filling.batch()
        return images[0], int(labels[0])

    def subset(self, indices: Sequence[int]) -> Self:
        """The samples at these indices, in this order. A torch Subset of the data set, as random_split makes it, is
        read as this. Raises DataFailed for one that is not there."""
        clone, rows = copy.copy(self), rows_of(indices, len(self), whose="a part of a folder of images")
        clone._chosen = rows if self._chosen is None else self._chosen[rows]
        return clone

    def with_steady(self, replacement: Any) -> Self:
        """The same data set, decoded images taken from `replacement`, which has them by view(index)."""
        clone = copy.copy(self)
        clone._images = CachedImages(replacement)
        return clone

    @property
    def sample_order(self) -> Callable[[int, bool], SampleOrder] | None:
        """The order of shards, in which what is read together lies together; None where every order is as good."""
        return getattr(self.steady, "sample_order", None) if self._chosen is None else None

    def placed(self, where: Placement) -> Self:
        """The same data set, its batches prepared for where they go."""
        clone = copy.copy(self)
        # A loader's own: another one's workers may be forked while a thread takes from it.
        clone._memory = BatchMemory()
        if where.accelerator:
            clone._filling = FillCanvas if where.transforms else FillBytes
        else:
            clone._filling = FillChannelsLast if where.channels_last else FillPixels
        if clone._filling is not FillCanvas and (reason := why_plain()):
            clone.notices = (f"images are resized by torch and not by hasten's own kernel, which is faster: {reason}",)
        return clone

    def draws(self, numbers: np.ndarray) -> list[list[float]]:
        """The random numbers of samples, from the one number that each of them has (uint64, shape (n,))."""
        return draws_of(numbers, self.view.draws)

    def filling(self, samples: int) -> Filling:
        """A batch of so many samples, still empty."""
        return self._filling(samples, self.view.size, self._colours, self._memory)

    def fill(self, filling: Filling, place: int, index: int, draws: Sequence[float]) -> None:
        """Read one sample and put it at its place in a batch."""
        row = index if self._chosen is None else int(self._chosen[index])
        image, label = self._images.labelled(row)
        box = self.view.box(image.height, image.width, draws)
        denominator = sufficient(box.height, box.width, self.view.size, image.denominators)
        filling.put(place, image.at(denominator), box.at(denominator), label)

    def finished(self, batch: Any) -> Any:
        """A batch on its device, as the model takes it: (images, labels)."""
        if isinstance(batch, Shown):
            return self._colours.normalised(batch.pixels.float()), batch.labels
        if isinstance(batch, Cropped):
            shown = resize_together(batch.canvas, batch.sides, batch.mirrored, self.view.size)
            return self._colours.normalised(shown), batch.labels
        return batch
