"""A folder of class folders: which files are read, as what, and what is refused."""

import os
from pathlib import Path

import numpy as np
import pytest

from hasten.data.images.crops import CenterCrop, RandomResizedCrop
from hasten.data.images.image_files import ImageFiles, read_file, scan
from hasten.errors import DataFailed
from support.data.image_cases import file_of, image, jpeg, write


def test_every_folder_is_a_class_and_pictures_lie_at_any_depth(tmp_path, monkeypatch):
    root = write(
        tmp_path,
        {
            "dog/2.JPG": b"x",
            "dog/1.jpg": b"x",
            "cat/deep/er/b.png": b"x",
            "cat/a.webp": b"x",
            "cat/notes.txt": b"x",
            "cat/.hidden.jpg": b"x",
            "cat/.git/c.jpg": b"x",
            ".cache/d.jpg": b"x",
            "readme.jpg": b"x",
        },
    )
    monkeypatch.chdir(root)
    assert scan(Path("."))[1] == scan(root)[1]
    classes, names, labels = scan(root)
    assert classes == ["cat", "dog"]
    assert list(names) == ["cat/a.webp", "cat/deep/er/b.png", "dog/1.jpg", "dog/2.JPG"]
    assert (labels.tolist(), labels.dtype) == ([0, 0, 1, 1], np.int32)


@pytest.mark.parametrize(
    ("files", "place", "told"),
    [
        ({"a.jpg": b"x"}, "", "contains no folder"),
        ({"cat/a.jpg": b"x", "dog/notes.txt": b"x"}, "dog", "the class 'dog' has no image"),
    ],
)
def test_a_folder_without_classes_or_pictures_is_refused(tmp_path, files, place, told):
    with pytest.raises(DataFailed, match=told) as refusal:
        scan(write(tmp_path, files))
    assert Path(refusal.value.where) == tmp_path / place
    assert "root/cat/1.jpg" in refusal.value.fix


def test_what_is_no_regular_file_is_refused_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe.jpg")
    (tmp_path / "zero.jpg").symlink_to("/dev/zero")
    for name in ("pipe.jpg", "zero.jpg"):
        with pytest.raises(DataFailed, match=r"it is a (named pipe|device), not a file") as refusal:
            read_file(str(tmp_path / name))
        assert refusal.value.where == str(tmp_path / name)


def files_of(tmp_path, view, **files):
    root = write(tmp_path, {f"c/{name}.jpg": data for name, data in files.items()})
    return ImageFiles(root, view)


def test_a_picture_is_kept_in_the_sizes_that_a_view_can_ask_for(tmp_path):
    files = files_of(tmp_path, RandomResizedCrop(20), a=jpeg(100, 90), b=jpeg(15, 30), c=file_of(image(99, 99), "PNG"))
    height, width, levels, label = files[0]
    assert (height, width, label) == (100, 90, 0)
    # The whole is 90 pixels wide: decoded at a quarter, 22 of them are left for 20.
    assert [level.shape for level in levels] == [(100, 90, 3), (50, 45, 3), (25, 23, 3), (0, 0, 3)]
    assert [level.size > 0 for level in files[1][2]] == [True, False, False, False]
    assert [level.size > 0 for level in files[2][2]] == [True, False, False, False]
    middle = files_of(tmp_path, CenterCrop(20), a=jpeg(100, 90))
    assert [level.size > 0 for level in middle[0][2]] == [False, True, True, False]


@pytest.mark.trap(41)
def test_a_cache_is_invalid_when_names_sizes_times_view_or_limit_change(tmp_path):
    files = files_of(tmp_path, CenterCrop(20), a=jpeg(30, 30), b=jpeg(40, 40))
    first = tmp_path / "c" / "a.jpg"
    os.utime(first, ns=(10**18, 10**18))
    key = files.cache_key()
    assert files.cache_key() == key

    def changed():
        return ImageFiles(tmp_path, CenterCrop(20)).cache_key()

    assert changed() == key
    keys = [ImageFiles(tmp_path, CenterCrop(21)).cache_key()]
    os.utime(first, ns=(10**18, 10**18 + 1))
    keys.append(changed())
    first.write_bytes(first.read_bytes() + b"x")
    os.utime(first, ns=(10**18, 10**18))
    keys.append(changed())
    first.rename(tmp_path / "c" / "aa.jpg")
    keys.append(changed())
    assert len({key, *keys}) == 5
