"""Files that never replace another one: what takes their name meanwhile stays, and a killed process leaves nothing."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

import pytest

from hasten.checkpoint.files import is_leftover
from hasten.checkpoint.new_files import write_new
from hasten.errors import StorageFailed
from support.checkpoint import file_faults

OLD, NEW = b"it took days", b"new" * 1000


def at(monkeypatch: pytest.MonkeyPatch, function: str, happens) -> None:
    """Let something happen, once, just before this function of os does its work."""
    real, left = getattr(os, function), [happens]

    def called(*given, **options):
        if left:
            left.pop()()
        return real(*given, **options)

    monkeypatch.setattr(os, function, called)


def without_links(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*given) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", refuse)


def test_a_new_file_has_its_content_and_the_mode_of_any_other(tmp_path: Path):
    assert write_new(tmp_path / "a", NEW)
    (tmp_path / "b").write_bytes(b"")
    assert (tmp_path / "a").read_bytes() == NEW
    assert (tmp_path / "a").stat().st_mode == (tmp_path / "b").stat().st_mode
    assert (tmp_path / "a").stat().st_nlink == 1
    assert sorted(os.listdir(tmp_path)) == ["a", "b"]


@pytest.mark.parametrize("links", [True, False])
@pytest.mark.parametrize("there", ["a file", "a folder", "a link to nowhere"])
def test_what_has_the_name_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, links: bool, there: str):
    path = tmp_path / "a"
    make = {"a file": path.touch, "a folder": path.mkdir, "a link to nowhere": lambda: path.symlink_to("nowhere")}
    if not links:
        without_links(monkeypatch)
    at(monkeypatch, "fsync", make[there])
    assert not write_new(path, NEW)
    assert os.listdir(tmp_path) == ["a"]
    assert path.is_symlink() or path.is_dir() or path.read_bytes() == b""


def test_where_there_are_no_links_the_file_is_written_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    without_links(monkeypatch)
    assert write_new(tmp_path / "a", NEW)
    assert (tmp_path / "a").read_bytes() == NEW
    assert os.listdir(tmp_path) == ["a"]


@pytest.mark.parametrize("function", ["fsync", "link"])
def test_what_a_living_process_writes_is_left_to_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: str):
    """A second one writes a file of the same name from beginning to end, while the first is about to go on."""
    path, seen = tmp_path / "a", list[list[str]]()

    def second() -> None:
        assert write_new(path, OLD)
        seen.append(os.listdir(tmp_path))

    at(monkeypatch, function, second)
    assert not write_new(path, NEW)
    assert [sum(is_leftover(name) for name in names) for names in seen] == [1]
    assert path.read_bytes() == OLD
    assert os.listdir(tmp_path) == ["a"]


@pytest.mark.parametrize("links", [True, False])
def test_what_a_process_left_that_was_killed_anywhere_goes_with_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, links: bool
):
    if not links:
        without_links(monkeypatch)
    path, number, leftovers = tmp_path / "a", 0, 0
    while file_faults.killed_inside(number := number + 1, lambda: write_new(path, NEW)):
        leftovers += any(map(is_leftover, os.listdir(tmp_path)))
        assert not path.exists() or path.read_bytes() in ((NEW,) if links else (NEW, b""))
        path.unlink(missing_ok=True)
        assert write_new(path, OLD)
        assert os.listdir(tmp_path) == ["a"]
        path.unlink()
    assert leftovers >= 3


def test_only_leftovers_of_this_very_name_go(tmp_path: Path):
    others = [
        ".b.new.12345678.tmp",
        ".a.12345678.tmp",
        ".xa.new.12345678.tmp",
        ".a.new.1234567.tmp",
        "a.new.12345678.tmp",
    ]
    for name in (*others, ".a.new.12345678.tmp"):
        (tmp_path / name).touch()
    assert write_new(tmp_path / "a", NEW)
    assert sorted(os.listdir(tmp_path)) == sorted([*others, "a"])


@pytest.mark.parametrize("kind", [fcntl.LOCK_EX, fcntl.LOCK_SH])
def test_another_program_that_has_locked_the_folder_holds_nobody_up(tmp_path: Path, kind: int):
    (tmp_path / ".a.new.12345678.tmp").touch()
    descriptor = os.open(tmp_path, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, kind)
        assert write_new(tmp_path / "a", NEW)
    finally:
        os.close(descriptor)
    assert sorted(os.listdir(tmp_path)) == [".a.new.12345678.tmp", "a"]  # it may be somebody's who writes it now


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize(
    ("operation", "stays"), [("open", 0), ("write", 0), ("fsync", 0), ("folder", 1), ("unlink", 2)]
)
def test_a_failing_disk_leaves_nothing_and_names_the_file_that_was_asked_for(
    tmp_path: Path, code: int, operation: str, stays: int
):
    """What cannot be removed stays, hidden; and the name that is there already when its folder cannot be forced."""
    path = tmp_path / "a"
    number = ["open", "write", "fsync", "folder", "unlink"].index(operation) + 1
    with file_faults.failing([number], code) as refused:
        if operation == "unlink":
            assert write_new(path, NEW)
        else:
            with pytest.raises(StorageFailed, match=os.strerror(code)) as caught:
                write_new(path, NEW)
            assert caught.value.where == str(path)
    assert [each.name for each in refused] == [operation.replace("folder", "fsync")]
    assert len(os.listdir(tmp_path)) == stays
    assert path.exists() == (stays > 0)


def test_a_folder_that_is_not_there_is_told_of_the_file(tmp_path: Path):
    with pytest.raises(StorageFailed, match="make the folder first") as caught:
        write_new(tmp_path / "nowhere" / "a", NEW)
    assert caught.value.where == str(tmp_path / "nowhere" / "a")
