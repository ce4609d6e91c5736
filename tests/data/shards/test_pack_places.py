"""Where shards are packed to: what is refused before the work, and that two packings of one folder never meet."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hasten.checkpoint.locks.file_lock import locked
from hasten.errors import Misconfigured
from support.data.small_shards import contents, pack_samples, packed_folder


def test_nothing_is_packed_over_what_is_there(tmp_path: Path):
    folder = packed_folder(tmp_path)
    before = contents(folder)
    with pytest.raises(Misconfigured, match="it exists and is not empty"):
        packed_folder(tmp_path)
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
