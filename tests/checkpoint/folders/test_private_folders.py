"""What is run or trained on without another look lies in folders of the user's own, or is refused."""

import os
from pathlib import Path

import pytest

from hasten.checkpoint.folders.private_folders import own_folder, user_cache, user_caches
from hasten.errors import StorageFailed

INSTEAD = "set XDG_CACHE_HOME to a folder of your own"


def test_a_directory_that_others_can_write_to_is_refused(tmp_path: Path):
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    with pytest.raises(StorageFailed, match="other users can write into the folder") as refused:
        own_folder(shared, INSTEAD)
    assert refused.value.fix == f"chmod 700 {shared}, or {INSTEAD}"


def test_a_link_in_the_place_of_the_directory_is_refused(tmp_path: Path):
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with pytest.raises(StorageFailed, match="it is not a folder") as refused:
        own_folder(tmp_path / "link", INSTEAD)
    assert refused.value.fix == f"move it away, or {INSTEAD}"


def test_a_directory_of_somebody_else_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    own_folder(tmp_path / "mine", INSTEAD)
    monkeypatch.setattr("os.getuid", lambda: tmp_path.stat().st_uid + 1)
    with pytest.raises(StorageFailed, match="belongs to another user") as refused:
        own_folder(tmp_path / "mine", INSTEAD)
    assert refused.value.fix == INSTEAD


def test_a_user_without_a_home_is_told_how_to_name_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr("os.getuid", lambda: 2**31 - 5)  # nobody's, as where a container is given any number
    with pytest.raises(StorageFailed, match="user 2147483643 has no home directory") as refused:
        user_caches()
    assert refused.value.fix == INSTEAD
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert user_caches() == tmp_path / "hasten"


def test_all_caches_are_the_owners_alone_whatever_the_usual_mode_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    before = os.umask(0o002)
    try:
        made = user_cache("kernels")
    finally:
        os.umask(before)
    assert made == user_caches() / "kernels"
    assert [each.stat().st_mode & 0o777 for each in (made, user_caches())] == [0o700, 0o700]
