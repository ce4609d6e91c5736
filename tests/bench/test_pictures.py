from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from bench.pictures import CLASSES, HEIGHT, WIDTH, write_pictures
from PIL import Image, JpegImagePlugin


@pytest.fixture(scope="module")
def pictures(tmp_path_factory) -> Path:
    return write_pictures(tmp_path_factory.mktemp("pictures") / "these", 24)


def test_pictures_are_of_the_size_and_the_coding_that_the_goal_names(pictures):
    for path in pictures.rglob("*.jpg"):
        with Image.open(path) as picture:
            assert picture.size == (WIDTH, HEIGHT)
            assert isinstance(picture, JpegImagePlugin.JpegImageFile)
            assert JpegImagePlugin.get_sampling(picture) == 2  # Pillow's number for 4:2:0


def test_pictures_are_spread_over_the_classes(pictures):
    found = Counter(path.parent.name for path in pictures.rglob("*.jpg"))
    assert sum(found.values()) == 24
    assert len(found) == CLASSES
    assert max(found.values()) - min(found.values()) <= 1


def test_no_picture_is_another_one_and_all_are_the_same_every_time(pictures, tmp_path):
    def contents(folder: Path) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in sorted(folder.rglob("*.jpg"))}

    again = write_pictures(tmp_path / "again", 24)
    assert contents(again) == contents(pictures)
    assert len(set(contents(pictures).values())) == 24
