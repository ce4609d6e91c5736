"""The pictures of the loading benchmarks: JPEG files of 500 × 375, the middle size of ImageNet's, in class folders.

Photographs that a package ships, since nothing may be downloaded: scikit-learn's temple (china.jpg) and flower. Each
picture is a part of one, between 400 and 560 pixels wide, brought to 500 × 375 and mirrored or not. How long a JPEG
takes to decode follows from its size, its subsampling and how many bytes it has, so what the parts show matters little;
that they are few and alike would matter to a model's accuracy, which nobody measures here.

The same number always gives the same files.

Where accuracy counts, `enlarge` brings the crops of examples/sample_photos.py to as many pixels, with grain, so that
the files have about as many bytes as photographs of that size.
"""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
from PIL import Image

HEIGHT, WIDTH = 375, 500
CLASSES = 10
QUALITY = 85
PHOTOGRAPHS = ("china.jpg", "flower.jpg")
SQUARE, GRAIN, FINE = 432, 10.0, 95  # pixels of a side, levels of 255, JPEG quality
NARROWEST, WIDEST = 400, 560  # pixels of the photograph that a picture shows; its height is in proportion


def write_pictures(folder: Path, count: int) -> Path:
    """Write `count` pictures as folder/class-3/000013.jpg and so on, classes in turn; returns the folder."""
    from sklearn.datasets import load_sample_image

    photographs = [Image.fromarray(load_sample_image(name)) for name in PHOTOGRAPHS]
    for label in range(CLASSES):
        (folder / f"class-{label}").mkdir(parents=True)
    drawn = random.Random(0)
    for number in range(count):
        picture = _part(photographs[number % len(photographs)], drawn)
        path = folder / f"class-{number % CLASSES}" / f"{number:06}.jpg"
        picture.save(path, quality=QUALITY, subsampling="4:2:0")
    return folder


def enlarge(photos: Path, folder: Path) -> Path:
    """Write every picture below photos, 432 × 432, to the same place below folder; returns the folder."""
    grain = np.random.default_rng(0)
    for path in sorted(photos.rglob("*.jpg")):
        with Image.open(path) as small:
            large = small.resize((SQUARE, SQUARE), Image.Resampling.BICUBIC)
        pixels = np.asarray(large, np.float32) + grain.normal(scale=GRAIN, size=(SQUARE, SQUARE, 3)).astype(np.float32)
        place = folder / path.relative_to(photos)
        place.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(place, quality=FINE, subsampling="4:2:0")
    return folder


def _part(photograph: Image.Image, drawn: random.Random) -> Image.Image:
    width = drawn.randint(NARROWEST, WIDEST)
    height = round(width * HEIGHT / WIDTH)
    left, top = drawn.randint(0, photograph.width - width), drawn.randint(0, photograph.height - height)
    part = photograph.resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC, box=(left, top, left + width, top + height))
    return part.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if drawn.random() < 0.5 else part
