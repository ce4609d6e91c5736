"""Packing: the same bytes every time, a folder that is whole or missing, and nothing packed that should not be."""

import errno
import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hasten import Shards
from hasten.checkpoint import files
from hasten.data.shards import shard_writer as packing_module
from hasten.data.shards.shard_check import verify
from hasten.data.shards.shard_index import MANIFEST, ROWS, UNFINISHED
from hasten.data.shards.shard_writer import PicturesInFolders, Samples, estimated, pack
from hasten.errors import DataFailed, Misconfigured, StorageFailed, UserCodeFailed
from support.data.small_shards import NUMBERED, Numbered, contents, pack_samples, packed_folder, picture

# ---- what is written


def test_the_same_data_and_seed_give_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    first = contents(packed_folder(tmp_path / "a"))
    monkeypatch.setattr(os, "getuid", lambda: 4242)
    os.umask(os.umask(0o077))
    assert contents(packed_folder(tmp_path / "b")) == first
    assert contents(packed_folder(tmp_path / "c", seed=1)) != first


def test_samples_are_shuffled_once_unless_their_order_is_kept(tmp_path: Path):
    kept = [number for number, _ in Shards(packed_folder(tmp_path / "kept", seed=None), form=NUMBERED)]
    shuffled = [number for number, _ in Shards(packed_folder(tmp_path / "shuffled"), form=NUMBERED)]
    assert kept == list(range(30))
    assert shuffled != kept
    assert sorted(shuffled) == kept


def test_shards_have_about_the_size_that_was_asked_for_and_one_sample_at_least(tmp_path: Path):
    folder = packed_folder(tmp_path, shard_bytes=20_000)
    sizes = [path.stat().st_size for path in sorted(folder.glob("*.tar"))]
    assert all(15_000 < size <= 20_000 for size in sizes[:-1])
    tiny = packed_folder(tmp_path / "tiny", 5, shard_bytes=1)
    assert len(list(tiny.glob("*.tar"))) == 5


def test_the_manifest_says_what_lies_beside_it(tmp_path: Path):
    folder = packed_folder(tmp_path)
    manifest = json.loads((folder / MANIFEST).read_text())
    names = [shard["name"] for shard in manifest["shards"]]
    assert sorted(contents(folder)) == sorted([MANIFEST, ROWS, *names])
    assert names[:2] == ["shard-000000.tar", "shard-000001.tar"]
    assert manifest["samples"] == 30 == sum(shard["samples"] for shard in manifest["shards"])


def test_a_folder_of_class_folders_keeps_its_files_and_classes(tmp_path: Path):
    root = tmp_path / "photos"
    expected = {
        (picture(root / "cat" / "b.JPG", 1), 0),
        (picture(root / "cat" / "deep" / "c.png", 2), 0),
        (picture(root / "dog" / "a.jpeg", 3), 1),
    }
    (root / "dog" / "notes.txt").write_text("no picture")
    done = pack(PicturesInFolders(root), tmp_path / "shards", shard_bytes=1 << 20)
    data = Shards(tmp_path / "shards", form=("jpg;jpeg;png", "cls"))
    assert set(data) == expected
    assert data.classes == ("cat", "dog")
    assert (done.samples, done.shards) == (3, 1)


def test_a_picture_that_cannot_be_read_is_named(tmp_path: Path):
    picture(tmp_path / "photos" / "cat" / "a.jpg", 1)
    data = PicturesInFolders(tmp_path / "photos")
    (tmp_path / "photos" / "cat" / "a.jpg").unlink()
    with pytest.raises(DataFailed, match="cannot be read: No such file") as caught:
        pack(data, tmp_path / "shards", shard_bytes=1)
    assert caught.value.where.endswith("a.jpg")


def test_a_class_whose_name_no_index_can_hold_is_refused_before_anything_is_read(tmp_path: Path):
    picture(tmp_path / "photos" / "b\udcff" / "a.jpg", 1)
    with pytest.raises(DataFailed, match="its name is no UTF-8 text") as caught:
        PicturesInFolders(tmp_path / "photos")
    assert caught.value.where == f"{tmp_path}/photos/b\\xff"


# ---- estimate and refusals


def test_the_estimate_is_near_the_truth_and_the_disk_is_looked_at_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    data = Samples(Numbered(200))
    guess = estimated(data, tmp_path / "shards")
    pack(data, tmp_path / "shards", shard_bytes=1 << 20)
    truth = sum(len(content) for content in contents(tmp_path / "shards").values())
    assert 0.8 < guess.bytes / truth < 1.2
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(1000, 900, 100))
    with pytest.raises(StorageFailed, match=r"will be needed, and 100 B are free"):
        estimated(data, tmp_path / "others")
    assert not (tmp_path / "others").exists()


def test_data_that_is_no_map_style_data_set_is_refused():
    for data in (iter([1]), (torch.zeros(3), torch.zeros(3)), "text", {0: 1}, 7):
        with pytest.raises(Misconfigured, match="is no map-style data set"):
            Samples(data)


def test_no_samples_are_refused(tmp_path: Path):
    with pytest.raises(DataFailed, match="there are 0 samples"):
        estimated(Samples([]), tmp_path / "shards")


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


@pytest.mark.trap(41)
@pytest.mark.parametrize("name", DRAWS)
def test_a_sample_that_draws_ends_the_packing_wherever_it_stands(tmp_path: Path, name: str):
    def dropped() -> float:
        DRAWS[name]()
        return 0.0

    with pytest.raises(DataFailed, match=f"sample 199 draws from {name}'s global generator") as caught:
        pack(Samples(Drawing(dropped, first=199)), tmp_path / "shards", shard_bytes=1 << 20)
    assert "hasten.Augmented(dataset, transform)" in caught.value.fix
    assert os.listdir(tmp_path) == []


@pytest.mark.trap(41)
@pytest.mark.parametrize(
    ("draw", "how"),
    [(random.Random(1).random, "values"), (iter([1, 2.0] * 200).__next__, "parts"), (iter(range(400)).__next__, "")],
)
def test_what_a_generator_of_its_own_makes_another_each_time_is_not_packed(tmp_path: Path, draw: Any, how: str):
    with pytest.raises(DataFailed, match=f"sample 0, read twice, is not the same: its {how}.* differ"):
        estimated(Samples(Drawing(draw)), tmp_path / "shards")


def test_packing_draws_nothing_from_the_callers_generators(tmp_path: Path):
    states = [random.getstate(), torch.get_rng_state().tolist(), np.random.get_state()[1].tolist()]
    data = Samples(Numbered(30))
    estimated(data, tmp_path / "shards")
    pack(data, tmp_path / "shards", shard_bytes=1 << 20)
    assert states == [random.getstate(), torch.get_rng_state().tolist(), np.random.get_state()[1].tolist()]


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


def test_sizes_beyond_the_limits_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(packing_module, "LARGEST_MEMBER", 100)
    with pytest.raises(DataFailed, match="or one of more than 100 bytes"):
        pack_samples([b"x" * 101], tmp_path / "shards")
    monkeypatch.setattr(packing_module, "LARGEST_SAMPLE", 1024)
    with pytest.raises(DataFailed, match=r"has 1,536 bytes; 1,024 are the most"):
        pack_samples([{"a": b"x", "b": b""}], tmp_path / "shards")


# ---- faults


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_a_disk_that_fails_leaves_nothing_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int):
    def fail(descriptor: int) -> None:
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as failing:
        failing.setattr(packing_module, "check_writable", lambda folder: None)
        failing.setattr(os, "fsync", fail)
        with pytest.raises(StorageFailed, match=os.strerror(code)):
            packed_folder(tmp_path)
    assert os.listdir(tmp_path) == []


def test_an_interrupt_leaves_nothing(tmp_path: Path):
    def interrupt(done: int, whole: int) -> None:
        if done == 20:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pack(Samples(Numbered(30)), tmp_path / "shards", shard_bytes=20_000, progress=interrupt)
    assert os.listdir(tmp_path) == []


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


def test_whole_shards_verify(tmp_path: Path):
    folder, told = packed_folder(tmp_path), list[tuple[int, int]]()
    found = verify(folder, lambda done, whole: told.append((done, whole)))
    whole = sum(path.stat().st_size for path in folder.glob("*.tar"))
    assert (found.samples, found.bytes) == (30, whole)
    assert told[-1] == (whole, whole)


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


def test_all_damaged_shards_are_named_and_the_first_sample(tmp_path: Path):
    folder = packed_folder(tmp_path)
    for name in ("shard-000001.tar", "shard-000002.tar"):
        content = bytearray((folder / name).read_bytes())
        content[3000] ^= 1
        (folder / name).write_bytes(content)
    with pytest.raises(DataFailed, match=r"2 of \d shards are damaged: shard-000001.tar, shard-000002.tar") as caught:
        verify(folder)
    assert "shard-000001.tar, bytes " in caught.value.what


def test_a_folder_without_a_manifest_cannot_be_verified(tmp_path: Path):
    with pytest.raises(DataFailed, match="cannot be read: No such file"):
        verify(tmp_path)
