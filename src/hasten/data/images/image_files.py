"""A folder of class folders, and the part of its images that is the same every time: what the files decode to.

Fifty million paths as Python objects would take six gigabytes, and each forked worker would copy them all, because
reading changes their reference counts. So all names are in one block of bytes.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from array import array
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from hasten.data.cache.cache_key import is_folder, key_of
from hasten.data.images.crops import View, sufficient
from hasten.data.images.image_decoder import DECODING, DENOMINATORS, MOST_PIXELS, Encoded, printable, refused
from hasten.errors import DataFailed

EXTENSIONS = frozenset({".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff", ".ppm", ".pgm"})
MOST_BYTES = 1 << 28  # of one file


class Image(Protocol):
    """height, width: in full. denominators: at which parts of its size `at` can give it."""

    @property
    def height(self) -> int: ...

    @property
    def width(self) -> int: ...

    @property
    def denominators(self) -> Sequence[int]: ...

    def at(self, denominator: int) -> np.ndarray: ...


Levels = tuple[int, int, tuple[np.ndarray, ...], int]  # height, width, levels, label


class Images(Protocol):
    """Images by number, with their labels: in files, in shards, or cached."""

    def __len__(self) -> int: ...

    def labelled(self, index: int) -> tuple[Image, int]: ...


class Names:
    """Texts by number, in one block of memory."""

    def __init__(self, texts: Iterable[str] = ()) -> None:
        self._block, self._ends = bytearray(), array("q")
        self.extend(texts)

    def extend(self, texts: Iterable[str]) -> None:
        for text in texts:
            self._block += os.fsencode(text)
            self._ends.append(len(self._block))

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, index: int) -> str:
        start = 0 if index in (0, -len(self)) else self._ends[index - 1]
        return os.fsdecode(bytes(self._block[start : self._ends[index]]))


class ImageFiles:
    """A map-style data set of (height, width, levels, label): each image in the sizes that a view of it can ask for.

    levels: one uint8 array (h, w, 3) for each of the denominators 1, 2, 4 and 8, the image at one over them of its
        size, rounded up; one without pixels, (0, 0, 3), stands for a size that is never asked for.

    Reading draws no random number.
    """

    steady_reason = "a file decodes to the same pixels every time"

    def __init__(self, root: Path, view: View, most_pixels: int = MOST_PIXELS) -> None:
        self.root, self._view, self._most_pixels = root, view, most_pixels
        self._folder = os.path.join(root, "")
        self.classes, self.names, self._labels = scan(root)

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: int) -> Levels:
        return levels_of(self._view, *self.labelled(index))

    def labelled(self, index: int) -> tuple[Encoded, int]:
        """One image, read and not yet decoded, and its label. Raises DataFailed, naming the file, when it is none."""
        path = self.path(index)
        return Encoded(read_file(path), path, self._most_pixels), int(self._labels[index])

    def path(self, index: int) -> str:
        return self._folder + self.names[index]

    def cache_key(self) -> str:
        """Changes with the names, sizes and times of the files, the sizes asked for, and the decoders."""
        digest = hashlib.sha256(key_of((self._view, self._most_pixels), DECODING).encode())
        for index in range(len(self)):
            digest.update(f"{self.names[index]!r} {_state(self.path(index))}\n".encode())
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


def levels_of(view: View, image: Image, label: int) -> Levels:
    """An image in the form of the cache: in every size that the view can ask for."""
    wanted, nothing = asked_for(view, image), np.empty((0, 0, 3), dtype=np.uint8)
    levels = tuple(image.at(each) if each in wanted else nothing for each in DENOMINATORS)
    return image.height, image.width, levels, label


def asked_for(view: View, image: Image) -> set[int]:
    """The denominators at which a view may want parts of an image."""
    low = sufficient(*view.smallest(image.height, image.width), view.size, image.denominators)
    high = sufficient(image.height, image.width, view.size, image.denominators)
    return {each for each in image.denominators if low <= each <= high}


def _state(path: str) -> str:
    """What changes when a file does. A file that is gone raises no error here, but where it is read."""
    try:
        found = os.stat(path)
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            fix = "look at its disk or network, and at its permissions"
            raise DataFailed(f"cannot be read: {error.strerror}", where=printable(path), fix=fix) from error
        return f"cannot be found: {error.errno}"
    return f"{found.st_size} {found.st_mtime_ns}"


def read_file(path: str) -> bytes:
    """A file's bytes, read at their exact size: larger reads make threads wait for each other in the kernel.

    Raises OSError, and DataFailed for what is too large or no file.
    """
    # Without blocking: a pipe that nobody writes to would be waited for.
    file = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    try:
        about = os.fstat(file)
        size = about.st_size
        if not stat.S_ISREG(about.st_mode):
            raise refused(path, "is no regular file")
        if size > MOST_BYTES:
            raise refused(path, f"has {size} bytes; {MOST_BYTES} are allowed")
        data = os.read(file, size)
        while len(data) < size and (more := os.read(file, size - len(data))):
            data += more
        return data
    finally:
        os.close(file)


def scan(root: Path) -> tuple[list[str], Names, np.ndarray]:
    """Classes, names of all files below the class folders, and the class number of each (int32), all in sorted order.

    Every folder in `root` is a class, and images may lie at any depth in it. What begins with a dot is passed over,
    and so is every file whose ending is not a image's.

    Raises DataFailed when there is no class, a class without images, or a link that leads back to where it lies.
    """
    write = "give a folder that holds one folder of images for each class: root/cat/1.jpg"
    if not root.is_dir():
        raise DataFailed("is no folder", where=str(root), fix=write)
    classes = class_folders(root)
    if not classes:
        raise DataFailed("holds no folder", where=str(root), fix=write)
    names, labels = Names(), list[np.ndarray]()
    for number, name in enumerate(classes):
        files = sorted(_images(root, name, ()))
        if not files:
            raise DataFailed(f"the class {name!r} has no image", where=str(root / name), fix=write)
        names.extend(files)
        labels.append(np.full(len(files), number, dtype=np.int32))
    return classes, names, np.concatenate(labels)


def class_folders(root: Path) -> list[str]:
    """Names of the folders in `root` that are classes, sorted."""
    return sorted(entry.name for entry in os.scandir(root) if is_folder(entry) and not entry.name.startswith("."))


def _images(root: Path, folder: str, above: tuple[os.stat_result, ...]) -> Iterator[str]:
    """Names relative to root. above: the folders that this one lies in."""
    about = os.stat(root / folder)
    if any(os.path.samestat(about, each) for each in above):
        raise DataFailed("links back to a folder that it lies in", where=str(root / folder), fix="remove this link")
    with os.scandir(root / folder) as entries:
        for entry in entries:
            name = f"{folder}/{entry.name}"
            if entry.name.startswith("."):
                continue
            if is_folder(entry):
                yield from _images(root, name, (*above, about))
            elif os.path.splitext(entry.name)[1].lower() in EXTENSIONS:
                yield name
