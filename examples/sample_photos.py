"""A folder of small photographs, cut from the two that scikit-learn carries with it.

What does a crop show: leaves, a lake, petals, the sky, a tower or trees? Valid crops come from areas that share no
pixel with an area that is learned from, such as the right side of the same tower.
"""

from __future__ import annotations

import os
import random
import tempfile
from pathlib import Path
from zlib import crc32

from PIL import Image
from sklearn.datasets import load_sample_image

SIDE = 64  # pixels, of a crop
CROPS = {"train": 400, "valid": 50}  # of each class
Box = tuple[int, int, int, int]  # left, top, right, bottom

# What is where: class, photograph, the area to learn from, the area to be judged by.
AREAS: list[tuple[str, str, Box, Box]] = [
    ("leaves", "flower.jpg", (440, 0, 640, 380), (0, 0, 165, 420)),
    ("lake", "china.jpg", (350, 222, 470, 305), (470, 205, 545, 275)),
    ("petals", "flower.jpg", (180, 100, 320, 350), (320, 110, 430, 330)),
    ("sky", "china.jpg", (320, 0, 500, 190), (500, 0, 640, 130)),
    ("tower", "china.jpg", (95, 100, 235, 340), (240, 100, 320, 310)),
    ("trees", "china.jpg", (330, 320, 640, 427), (0, 340, 190, 427)),
]


def cut_photos(folder: Path) -> None:
    """Fill folder with train/<class>/*.jpg and valid/<class>/*.jpg: crops at random places, the same in every run."""
    places = random.Random(0)
    for name, photograph, *areas in AREAS:
        whole = Image.fromarray(load_sample_image(photograph))
        for (part, crops), (left, top, right, bottom) in zip(CROPS.items(), areas, strict=True):
            (folder / part / name).mkdir(parents=True)
            for number in range(crops):
                x, y = places.randint(left, right - SIDE), places.randint(top, bottom - SIDE)
                whole.crop((x, y, x + SIDE, y + SIDE)).save(folder / part / name / f"{number:04}.jpg", quality=90)


def sample_photos() -> Path:
    """The folder of crops, cut by the first run that asks for it.

    It gets its name only when it is whole, so an interrupted run leaves no half of one. The name belongs to what is
    cut: after an edit of AREAS, crops are cut anew.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hasten"
    folder = cache / f"photos-{crc32(repr((AREAS, CROPS, SIDE)).encode()):08x}"
    if not folder.exists():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as unfinished:
            cut_photos(Path(unfinished) / "photos")
            try:
                (Path(unfinished) / "photos").rename(folder)
            except OSError:
                if not folder.exists():  # else another process was faster, and its crops are the same
                    raise
    return folder
