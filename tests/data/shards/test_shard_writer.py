"""Packing: the same bytes every time, a folder that is whole or missing, and nothing packed that should not be."""

import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hasten import Shards
from hasten.checkpoint import files
from hasten.data.shards.shard_check import verify
from hasten.data.shards.shard_index import MANIFEST, UNFINISHED
from hasten.data.shards.shard_writer import ImagesInFolders, Samples, estimated, pack
from hasten.errors import DataFailed, UserCodeFailed
from support.data.small_shards import contents, pack_samples, packed_folder, picture

# ---- what is written


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


# ---- estimate and refusals


class Drawing:
    """Draws for its last sample, or for all of them."""

    def __init__(self, draw: Callable[[], Any], first: int = 0) -> None:
        self.draw, self.first = draw, first

    def __len__(self) -> int:
        return 200

    def __getitem__(self, index: int) -> Any:
        return index, self.draw() if index >= self.first else 0.0


DRAWS = {"Python": random.random, "NumPy": np.random.rand, "torch": lambda: torch.rand(()).item()}


@pytest.mark.trap(41)
@pytest.mark.parametrize("name", DRAWS)
def test_random_augmentation_is_not_packed(tmp_path: Path, name: str):
    with pytest.raises(DataFailed, match=f"sample 0 draws from {name}'s global generator"):
        estimated(Samples(Drawing(DRAWS[name])), tmp_path / "shards")


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
        (Failing(ZeroDivisionError("theirs")), UserCodeFailed, "sample 5 could not be read: ZeroDivisionError: theirs"),
        (Failing(OSError("torn")), DataFailed, "sample 5 could not be read: OSError: torn"),
        ([1, 2, {"a": {3}}], DataFailed, "sample 2 cannot be packed: set has no member"),
        ([{f"x{number}": 1 for number in range(65)}], DataFailed, "sample 0 has more than 64 members"),
    ],
)
def test_a_sample_that_cannot_be_packed_is_named_and_nothing_is_left(tmp_path: Path, sample: Any, kind: type, why: str):
    with pytest.raises(kind, match=why):
        pack_samples(sample, tmp_path / "shards")
    assert os.listdir(tmp_path) == []


# ---- faults


OPERATIONS = ("open", "fsync", "replace", "rename", "mkdir", "rmdir", "unlink")


def killed_at(operation: int, folder: Path, half: bool) -> bool:
    """Pack in a process of its own that dies before the file operation of this number; a write is cut in half first.

    True when it died, False when it was done before.
    """
    child = os.fork()
    if child == 0:
        left = operation

        def count(cut: Callable[[], None] = lambda: None) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                cut()
                os._exit(9)

        for name in OPERATIONS:
            original = getattr(os, name)
            setattr(os, name, lambda *given, original=original, **more: count() or original(*given, **more))
        vars(files)["open"] = lambda *given, **more: count() or open(*given, **more)  # noqa: SIM115
        write = files.NewFile.write

        def counted_write(self: files.NewFile, data: bytes) -> None:
            count(lambda: (write(self, data[: len(data) // 2]), self._file.flush()) if half else None)
            write(self, data)

        files.NewFile.write = counted_write  # type: ignore[method-assign]
        try:
            packed_folder(folder, 6, shard_bytes=5000)
        except BaseException:
            os._exit(1)
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, 9)
    return code == 9


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("half", [pytest.param(False, marks=pytest.mark.proof), True])
def test_killed_at_any_instant_the_folder_is_whole_or_says_that_it_is_not(tmp_path: Path, half: bool):
    expected = contents(packed_folder(tmp_path / "expected", 6, shard_bytes=5000))
    whole = missing = operation = 0
    died = True
    while died:
        folder = tmp_path / f"killed-{operation}"
        folder.mkdir()
        died = killed_at(operation, folder, half)
        if (folder / "shards").exists():
            assert contents(folder / "shards") == expected
            whole += 1
        else:
            missing += 1
            unfinished = (folder / ("shards" + UNFINISHED)).exists()
            with pytest.raises(DataFailed, match="packing did not finish" if unfinished else "no such file or folder"):
                Shards(folder / "shards")
            assert contents(packed_folder(folder, 6, shard_bytes=5000)) == expected
            assert os.listdir(folder) == ["shards"]
        operation += 1
    assert whole >= 2
    assert missing >= 40


# ---- verifying


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
