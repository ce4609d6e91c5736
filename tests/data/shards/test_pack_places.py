"""Where shards are packed to: what is refused before the work, and that two packings of one folder never meet."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hasten import Shards
from hasten.checkpoint.locks.file_lock import locked
from hasten.data.shards.shard_writer import Samples, estimated, pack
from hasten.errors import Misconfigured
from support.data.small_shards import Numbered, contents, pack_samples, packed_folder


def test_nothing_is_packed_over_what_is_there(tmp_path: Path):
    folder = packed_folder(tmp_path)
    before = contents(folder)
    for attempt in (lambda: packed_folder(tmp_path), lambda: estimated(Samples(Numbered(3)), folder)):
        with pytest.raises(Misconfigured, match="it exists and is not empty"):
            attempt()
    assert contents(folder) == before
    (tmp_path / "file").write_text("x")
    with pytest.raises(Misconfigured, match="it exists and is not empty"):
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
