"""The pictures of the loading benchmarks: JPEG files of 500 × 375, the middle size of ImageNet's, in class folders.

Photographs that a package ships, since nothing may be downloaded: scikit-learn's temple (china.jpg) and flower. Each
picture is a part of one, between 400 and 560 pixels wide, brought to 500 × 375 and mirrored or not. How long a JPEG
takes to decode follows from its size, its subsampling and how many bytes it has, so what the parts show matters little;
that they are few and alike would matter to a model's accuracy, which nobody measures here.

The same number always gives the same files.
"""

from __future__ import annotations

import random
from pathlib import Path

from PIL import Image

HEIGHT, WIDTH = 375, 500
CLASSES = 10
QUALITY = 85
PHOTOGRAPHS = ("china.jpg", "flower.jpg")
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


def _part(photograph: Image.Image, drawn: random.Random) -> Image.Image:
    width = drawn.randint(NARROWEST, WIDEST)
    height = round(width * HEIGHT / WIDTH)
    left, top = drawn.randint(0, photograph.width - width), drawn.randint(0, photograph.height - height)
    part = photograph.resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC, box=(left, top, left + width, top + height))
    return part.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if drawn.random() < 0.5 else part
