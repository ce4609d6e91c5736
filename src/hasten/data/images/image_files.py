"""A folder of class folders, and the part of its images that is the same every time: what the files decode to."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from hasten.data.cache.cache_key import key_of
from hasten.data.images.crops import View, sufficient
from hasten.data.images.image_decoder import DECODING, DENOMINATORS, MOST_PIXELS, Encoded, refused
from hasten.errors import DataFailed
from hasten.regular_files import regular_descriptor

EXTENSIONS = frozenset({".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff", ".ppm", ".pgm"})
MOST_BYTES = 1 << 28  # of one file


Levels = tuple[int, int, tuple[np.ndarray, ...], int]  # height, width, levels, label


class ImageFiles:
    """A map-style data set of (height, width, levels, label): each image in the sizes that a view of it can ask for.

    levels: one uint8 array (h, w, 3) for each of the denominators 1, 2, 4 and 8, the image at one over them of its
        size, rounded up; one without pixels, (0, 0, 3), for a size that is never asked for.
    """

    steady_reason = "a file decodes to the same pixels every time"

    def __init__(self, root: Path, view: View, most_pixels: int = MOST_PIXELS) -> None:
        self.root, self._view, self._most_pixels = root, view, most_pixels
        self._folder = os.path.join(root, "")
        self.classes, names, self._labels = scan(root)
        # In one block: as Python objects, each forked worker would copy them, because reading changes reference counts.
        self._names = np.array([*map(os.fsencode, names)])

    def __len__(self) -> int:
        return len(self._names)

    def __getitem__(self, index: int) -> Levels:
        return levels_of(self._view, *self.labelled(index))

    def labelled(self, index: int) -> tuple[Encoded, int]:
        """One image, read and not yet decoded, and its label. Raises DataFailed, naming the file, when it is none."""
        path = self.path(index)
        return Encoded(read_file(path), path, self._most_pixels), int(self._labels[index])

    def path(self, index: int) -> str:
        return self._folder + os.fsdecode(self._names[index])

    def cache_key(self) -> str:
        """Changes with the names, sizes and times of the files, the sizes asked for, and the decoders."""
        digest = hashlib.sha256(key_of((self._view, self._most_pixels), DECODING).encode())
        for index in range(len(self)):
            path = self.path(index)
            about = os.stat(path) if os.path.exists(path) else None  # a link to nothing is an error where it is read
            state = about and (about.st_size, about.st_mtime_ns)
            digest.update(f"{path.removeprefix(self._folder)!r} {state}\n".encode())
        return digest.hexdigest()


class CachedImages:
    """The same images from a cache: any data set whose `view(index)` gives Levels."""

    def __init__(self, cached: Any) -> None:
        self._cached = cached

    def __len__(self) -> int:
        return len(self._cached)

    def labelled(self, index: int) -> tuple[CachedImage, int]:
        height, width, levels, label = self._cached.view(index)
        return CachedImage(height, width, levels), int(label)


class CachedImage:
    def __init__(self, height: int, width: int, levels: Sequence[np.ndarray]) -> None:
        self.height, self.width = int(height), int(width)
        self._levels: dict[int, np.ndarray] = dict(zip(DENOMINATORS, levels, strict=True))
        self.denominators = tuple(each for each, level in self._levels.items() if level.size)

    def at(self, denominator: int) -> np.ndarray:
        return self._levels[denominator]


def levels_of(view: View, image: Encoded, label: int) -> Levels:
    """An image in the form of the cache: in every size that the view can ask for."""
    low = sufficient(*view.smallest(image.height, image.width), view.size, image.denominators)
    high = sufficient(image.height, image.width, view.size, image.denominators)
    wanted, nothing = {each for each in image.denominators if low <= each <= high}, np.empty((0, 0, 3), dtype=np.uint8)
    levels = tuple(image.at(each) if each in wanted else nothing for each in DENOMINATORS)
    return image.height, image.width, levels, label


def read_file(path: str) -> bytes:
    """A file's bytes, read at their exact size: larger reads make threads wait for each other in the kernel. Raises
    DataFailed, and OSError where the reading itself fails."""
    try:
        file = regular_descriptor(path)
    except OSError as error:
        raise refused(path, f"cannot be read: {error.strerror}") from error
    try:
        about = os.fstat(file)
        if about.st_size > MOST_BYTES:
            raise refused(path, f"has {about.st_size} bytes; {MOST_BYTES} are allowed")
        return os.read(file, about.st_size)
    finally:
        os.close(file)


def scan(root: Path) -> tuple[list[str], list[str], np.ndarray]:
    """Classes, names of all files below the class folders, and the class number of each (int32), all in sorted order.

    Every folder in `root` is a class, and images may lie at any depth in it. What begins with a dot is skipped, and so
    is every file whose ending is not an image's.

    Raises DataFailed when there is no class, or a class without images.
    """
    write = "give a folder that holds one folder of images for each class: root/cat/1.jpg"
    if not root.is_dir():
        raise DataFailed("is not a folder", where=str(root), fix=write)
    classes = class_folders(root)
    if not classes:
        raise DataFailed("contains no folder", where=str(root), fix=write)
    files = [sorted(_images(root, name)) for name in classes]
    for name, found in zip(classes, files, strict=True):
        if not found:
            raise DataFailed(f"the class {name!r} has no image", where=str(root / name), fix=write)
    labels = np.repeat(np.arange(len(classes), dtype=np.int32), [*map(len, files)])
    return classes, [*chain.from_iterable(files)], labels


def class_folders(root: Path) -> list[str]:
    """Names of the folders in `root` that are classes, sorted."""
    return sorted(path.name for path in root.iterdir() if path.is_dir() and not path.name.startswith("."))


def _images(root: Path, name: str) -> Iterator[str]:
    """Names relative to root of the images in a class folder."""
    for folder, inner, files in os.walk(root / name, followlinks=True):
        inner[:] = [each for each in inner if not each.startswith(".")]
        place = os.path.relpath(folder, root)
        for file in files:
            if not file.startswith(".") and os.path.splitext(file)[1].lower() in EXTENSIONS:
                yield f"{place}/{file}"
