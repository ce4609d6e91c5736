"""The key of a cache changes with the files and folders that a data set reads."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from support.data.cached_samples import key

pytestmark = pytest.mark.trap(41)


def read_only_memmap(path: Path) -> np.memmap:
    np.arange(8, dtype=np.int64).tofile(path)
    return np.memmap(path, np.int64, "r")


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    for name in ("cat/1.jpg", "cat/2.jpg", "dog/1.jpg"):
        path = tmp_path / "photos" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"12345")
        os.utime(path, ns=(10**18, 10**18))  # alike, so that only the name can tell them apart
    return tmp_path / "photos"


def rename(photos: Path) -> None:
    (photos / "cat/1.jpg").rename(photos / "cat/3.jpg")


def move(photos: Path) -> None:
    (photos / "cat/2.jpg").rename(photos / "dog/2.jpg")


def touch(photos: Path) -> None:
    about = (photos / "cat/1.jpg").stat()
    os.utime(photos / "cat/1.jpg", ns=(about.st_atime_ns, about.st_mtime_ns + 1))


def grow(photos: Path) -> None:
    path = photos / "cat/1.jpg"
    about = path.stat()
    path.write_bytes(b"123456")
    os.utime(path, ns=(about.st_atime_ns, about.st_mtime_ns))


def remove(photos: Path) -> None:
    (photos / "cat/2.jpg").unlink()


@pytest.mark.parametrize("change", [rename, move, touch, grow, remove], ids=lambda change: change.__name__)
@pytest.mark.parametrize("kind", [Path, str])
def test_a_change_below_a_folder_changes_the_key(photos, change, kind):
    before = key(kind(photos))
    assert key(kind(photos)) == before
    change(photos)
    assert key(kind(photos)) != before


def test_a_link_counts_by_what_it_leads_to(photos, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (photos / "far").symlink_to(tmp_path / "elsewhere", target_is_directory=True)
    (photos / "nowhere").symlink_to(tmp_path / "gone")
    (photos / "circle").symlink_to(photos / "circle")
    before = key(photos)
    assert key(photos) == before
    (tmp_path / "elsewhere" / "new.jpg").write_bytes(b"1")
    assert key(photos) != before


def test_a_memory_map_counts_by_its_file(tmp_path):
    mapped = read_only_memmap(tmp_path / "a.bin")
    before = key(mapped)
    os.utime(tmp_path / "a.bin", ns=(0, 12345))
    assert key(mapped) != before
