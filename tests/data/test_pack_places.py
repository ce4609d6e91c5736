"""Where shards are packed to: what is refused before the work, and that two packings of one folder never meet."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hasten import Shards
from hasten.checkpoint.locks.file_lock import locked
from hasten.data.shards import shard_writer as packing_module
from hasten.data.shards.shard_writer import PicturesInFolders, Samples, estimated, pack
from hasten.errors import DataFailed, Misconfigured
from support.data.small_shards import Numbered, contents, pack_samples, packed_folder, picture


def test_nothing_is_packed_over_what_is_there(tmp_path: Path):
    folder = packed_folder(tmp_path)
    before = contents(folder)
    for attempt in (lambda: packed_folder(tmp_path), lambda: estimated(Samples(Numbered(3)), folder)):
        with pytest.raises(Misconfigured, match="there is something already"):
            attempt()
    assert contents(folder) == before
    (tmp_path / "file").write_text("x")
    with pytest.raises(Misconfigured, match="there is something already"):
        pack_samples([1], tmp_path / "file")
    (tmp_path / "empty").mkdir()
    pack_samples([1], tmp_path / "empty")


def test_two_packings_of_one_folder_do_not_meet(tmp_path: Path):
    with (
        locked(tmp_path / ".shards.lock", None),
        pytest.raises(Misconfigured, match="another process is packing into it"),
    ):
        pack_samples([1], tmp_path / "shards")
    pack_samples([1], tmp_path / "shards")
    assert os.listdir(tmp_path) == ["shards"]


def test_a_packing_that_is_cleaning_up_still_keeps_others_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    remove, refused = packing_module.remove_folder, list[str]()

    def remove_and_try_again(path: Path) -> None:
        remove(path)
        with pytest.raises(Misconfigured) as caught:
            pack_samples([1], tmp_path / "shards")
        refused.append(caught.value.what)

    monkeypatch.setattr(packing_module, "remove_folder", remove_and_try_again)
    with pytest.raises(DataFailed, match="sample 0 cannot be packed"):
        pack_samples([{"a": {1}}], tmp_path / "shards")
    assert set(refused) == {"another process is packing into it"}
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("name", [".", "..", "mount", "link"])
def test_a_folder_that_cannot_be_made_anew_is_refused_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
):
    (tmp_path / "here").mkdir()
    (tmp_path / "mount").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "mount")
    monkeypatch.chdir(tmp_path / "here" if name == "." else tmp_path)
    monkeypatch.setattr(os.path, "ismount", lambda path: Path(path).name == "mount")
    folder, data = Path(name), Samples([1])
    for attempt in (lambda: estimated(data, folder), lambda: pack(data, folder, shard_bytes=1)):
        with pytest.raises(Misconfigured) as caught:
            attempt()
        assert caught.value.where == name
        assert caught.value.fix == f"name a new folder in it: {folder / 'shards'}"
    pack(data, folder / "shards", shard_bytes=1)
    assert len(Shards(folder / "shards")) == 1


@pytest.mark.parametrize("name", ["photos", "photos/shards", "photos/cat/deep/shards", "elsewhere/shards", "link"])
def test_shards_do_not_become_part_of_the_folder_that_is_packed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
):
    picture(tmp_path / "photos" / "cat" / "a.jpg", 1)
    (tmp_path / "elsewhere").symlink_to(tmp_path / "photos" / "cat")
    (tmp_path / "link").symlink_to(tmp_path / "photos")
    monkeypatch.chdir(tmp_path)
    data = PicturesInFolders(Path("photos"))
    for attempt in (lambda: estimated(data, Path(name)), lambda: pack(data, Path(name), shard_bytes=1)):
        with pytest.raises(Misconfigured, match="lies in the folder that is packed") as caught:
            attempt()
        assert caught.value.fix == f"name a folder outside of it, such as {tmp_path / 'photos-shards'}"
    assert os.listdir("photos") == ["cat"]


def test_shards_are_not_packed_around_their_source(tmp_path: Path):
    picture(tmp_path / "all" / "photos" / "cat" / "a.jpg", 1)
    with pytest.raises(Misconfigured, match="there is something already"):
        estimated(PicturesInFolders(tmp_path / "all" / "photos"), tmp_path / "all")
