"""A folder for compiled code is the user's own, or it is refused."""

from pathlib import Path

import pytest

from hasten.checkpoint.private import code_folder
from hasten.errors import StorageFailed


def test_a_directory_that_others_can_write_to_is_refused(tmp_path: Path):
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    with pytest.raises(StorageFailed, match="others can write") as refused:
        code_folder(shared, "XDG_CACHE_HOME")
    assert refused.value.fix == "remove it, or set XDG_CACHE_HOME to a directory of your own"


def test_a_link_in_the_place_of_the_directory_is_refused(tmp_path: Path):
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with pytest.raises(StorageFailed, match="others can write"):
        code_folder(tmp_path / "link", "XDG_CACHE_HOME")


def test_a_directory_of_somebody_else_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    code_folder(tmp_path / "mine", "XDG_CACHE_HOME")
    monkeypatch.setattr("os.getuid", lambda: tmp_path.stat().st_uid + 1)
    with pytest.raises(StorageFailed, match="others can write"):
        code_folder(tmp_path / "mine", "XDG_CACHE_HOME")


def test_a_directory_that_cannot_be_made_is_an_error_that_names_it(tmp_path: Path):
    (tmp_path / "file").touch()
    with pytest.raises(StorageFailed, match="could not be made") as refused:
        code_folder(tmp_path / "file" / "compiled", "XDG_CACHE_HOME")
    assert refused.value.where.startswith(str(tmp_path / "file"))
