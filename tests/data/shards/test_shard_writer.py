"""Packing: the same bytes every time, a folder that is whole or missing, and nothing packed that should not be."""

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hasten import Shards
from hasten.data.shards.shard_index import MANIFEST, verify
from hasten.data.shards.shard_writer import ImagesInFolders, pack
from hasten.errors import DataFailed
from support.checkpoint.file_faults import killed_inside
from support.data.small_shards import contents, pack_samples, packed_folder, picture


def test_the_same_data_and_seed_give_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    first = contents(packed_folder(tmp_path / "a"))
    monkeypatch.setattr(os, "getuid", lambda: 4242)
    os.umask(os.umask(0o077))
    assert contents(packed_folder(tmp_path / "b")) == first
    assert contents(packed_folder(tmp_path / "c", seed=1)) != first


def test_a_folder_of_class_folders_keeps_its_files_and_classes(tmp_path: Path):
    root = tmp_path / "photos"
    expected = {
        (picture(root / "cat" / "b.JPG", 1), 0),
        (picture(root / "cat" / "deep" / "c.png", 2), 0),
        (picture(root / "dog" / "a.jpeg", 3), 1),
    }
    (root / "dog" / "notes.txt").write_text("no picture")
    done = pack(ImagesInFolders(root), tmp_path / "shards", shard_bytes=1 << 20)
    data = Shards(tmp_path / "shards", form=("jpg;jpeg;png", "cls"))
    assert set(data) == expected
    assert data.classes == ("cat", "dog")
    assert (done.samples, done.shards) == (3, 1)


class Drawing:
    """Draws for its last sample, or for all of them."""

    def __init__(self, draw: Callable[[], Any], first: int = 0) -> None:
        self.draw, self.first = draw, first

    def __len__(self) -> int:
        return 200

    def __getitem__(self, index: int) -> Any:
        return index, self.draw() if index >= self.first else 0.0


@pytest.mark.trap(41)
def test_random_augmentation_is_not_packed(tmp_path: Path):
    with pytest.raises(DataFailed, match="sample 0 draws from NumPy's global generator"):
        pack_samples(Drawing(np.random.rand), tmp_path / "shards")


class Failing:
    def __init__(self, error: Exception) -> None:
        self.error = error

    def __len__(self) -> int:
        return 9

    def __getitem__(self, index: int) -> Any:
        if index == 5:
            raise self.error
        return index


@pytest.mark.parametrize(
    ("sample", "kind", "why"),
    [
        (Failing(OSError("torn")), DataFailed, "sample 5 could not be read: OSError: torn"),
        ([1, 2, {"a": {3}}], DataFailed, "sample 2 cannot be packed: set has no member"),
        ([{f"x{number}": 1 for number in range(65)}], DataFailed, "sample 0 has more than 64 members"),
    ],
)
def test_a_sample_that_cannot_be_packed_is_named_and_nothing_is_left(tmp_path: Path, sample: Any, kind: type, why: str):
    with pytest.raises(kind, match=why):
        pack_samples(sample, tmp_path / "shards")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("step", [8, pytest.param(1, marks=pytest.mark.proof)])
def test_killed_inside_any_file_operation_the_folder_is_whole_or_missing(tmp_path: Path, step: int):
    expected = contents(packed_folder(tmp_path / "expected", 6, shard_bytes=5000))
    operation, died = 1, True
    while died:
        folder = tmp_path / f"killed-{operation}"
        folder.mkdir()
        died = killed_inside(operation, partial(packed_folder, folder, 6, shard_bytes=5000))
        if not (folder / "shards").exists():
            with pytest.raises(DataFailed, match="no such file or folder"):
                Shards(folder / "shards")
            packed_folder(folder, 6, shard_bytes=5000)
            assert os.listdir(folder) == ["shards"]
        assert contents(folder / "shards") == expected
        operation += step
    assert operation > 40


def test_one_altered_byte_anywhere_is_found_and_named(tmp_path: Path):
    folder = packed_folder(tmp_path)
    for path in sorted(folder.iterdir()):
        whole = path.read_bytes()
        for place in (0, len(whole) // 3, len(whole) - 1):
            path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
            if path.name == MANIFEST and place:
                continue
            with pytest.raises(DataFailed) as caught:
                verify(folder)
            assert path.name in str(caught.value)
        path.write_bytes(whole)
    verify(folder)
