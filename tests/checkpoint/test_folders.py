"""Folders that take their name when they are whole, and files that grow."""

from __future__ import annotations

import errno
import fcntl
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hasten.checkpoint import files
from hasten.checkpoint.direct_io import read_bytes
from hasten.errors import StorageFailed
from support.checkpoint import file_faults


def test_a_file_that_grows_holds_its_pieces_when_it_is_finished(tmp_path):
    file = files.NewFile(tmp_path / "data.bin")
    for piece in (b"one", b"", b"two" * (1 << 20)):
        file.write(piece)
    file.finish()
    assert (tmp_path / "data.bin").read_bytes() == b"one" + b"two" * (1 << 20)


@pytest.mark.parametrize("make", [files.NewFile, files.NewFile.past_the_cache])
@given(lengths=st.lists(st.sampled_from([0, 1, 511, 4096, 4097, 1 << 20, (1 << 20) + 4096, 3 << 20]), max_size=5))
def test_pieces_of_any_length_are_in_the_file_in_their_order(tmp_path_factory, make, lengths):
    pieces = [bytes([number + 1]) * length for number, length in enumerate(lengths)]
    path = tmp_path_factory.mktemp("new") / "data.bin"
    file = make(path)
    for piece in pieces:
        file.write(piece)
    file.finish()
    assert path.read_bytes() == b"".join(pieces)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere all goes through the cache")
@pytest.mark.parametrize("refused", ["asked", "written"])
def test_a_disk_that_lets_nothing_past_the_cache_has_the_file_all_the_same(tmp_path, monkeypatch, refused):
    ask = fcntl.fcntl

    def asked(descriptor: int, command: int, flags: int = 0) -> int:
        if refused == "asked" and flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, "no such way")
        return ask(descriptor, command, flags)

    def written(descriptor: object, data: memoryview) -> int:
        straight = ask(file._file.fileno(), fcntl.F_GETFL) & os.O_DIRECT
        if straight and refused == "written":
            raise OSError(errno.EINVAL, "this block cannot be")
        return os.write(file._file.fileno(), data)

    monkeypatch.setattr(os, "major", lambda device: 8)
    monkeypatch.setattr(fcntl, "fcntl", asked)
    file = files.NewFile.past_the_cache(tmp_path / "data.bin")
    assert bool(ask(file._file.fileno(), fcntl.F_GETFL) & os.O_DIRECT) is (refused == "written")
    monkeypatch.setattr(file, "_file", _Raw(file._file, written))
    file.write(b"p" * (5 << 20))
    file.finish()
    assert (tmp_path / "data.bin").read_bytes() == b"p" * (5 << 20)


class _Raw:
    """A file whose write is another."""

    def __init__(self, file: Any, write: Callable[[object, memoryview], int]) -> None:
        self._file, self._write = file, write

    def write(self, data: memoryview) -> int:
        return self._write(self, data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def test_a_block_that_the_disk_refuses_for_another_reason_is_told(tmp_path, monkeypatch):
    def refused(self: object, data: memoryview) -> int:
        raise OSError(errno.EINVAL, "no such block")

    file = files.NewFile(tmp_path / "data.bin")
    monkeypatch.setattr(file, "_file", _Raw(file._file, refused))
    with pytest.raises(StorageFailed, match="could not be written: no such block"):
        file.write(b"p" * (1 << 20))
    file.abandon()


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the disk is not asked")
def test_the_disk_is_asked_to_begin_before_a_large_file_is_whole_and_may_refuse(tmp_path, monkeypatch):
    asked = list[tuple[int, int]]()

    def refused(descriptor: int, start: int, length: int, advice: int) -> None:
        asked.append((start, length))
        raise OSError(errno.EINVAL, "no advice here")

    monkeypatch.setattr(os, "posix_fadvise", refused)
    file, piece = files.NewFile(tmp_path / "data.bin"), b"p" * (1 << 23)
    for _ in range(5):
        file.write(piece)
    file.finish()
    assert asked == [(0, 1 << 24), (1 << 24, 1 << 24)]
    assert (tmp_path / "data.bin").read_bytes() == piece * 5


def test_a_file_that_exists_is_not_written_over(tmp_path):
    (tmp_path / "data.bin").write_bytes(b"old")
    with pytest.raises(StorageFailed, match="could not be made") as caught:
        files.NewFile(tmp_path / "data.bin")
    assert caught.value.where == str(tmp_path / "data.bin")
    assert (tmp_path / "data.bin").read_bytes() == b"old"


def test_a_folder_takes_its_name_with_all_that_is_in_it(tmp_path):
    (tmp_path / "building").mkdir()
    (tmp_path / "building" / "data").write_bytes(b"1")
    files.rename_folder(tmp_path / "building", tmp_path / "done")
    assert os.listdir(tmp_path) == ["done"]
    assert (tmp_path / "done" / "data").read_bytes() == b"1"


def test_what_is_in_a_folder_is_on_the_disk_before_its_name_and_the_name_before_the_return(tmp_path):
    (tmp_path / "building").mkdir()
    with file_faults.recorded() as operations:
        files.rename_folder(tmp_path / "building", tmp_path / "done")
    building, done = str(tmp_path / "building"), str(tmp_path)
    assert operations == [("fsync", building), ("rename", building), ("fsync", done)]


def test_a_name_that_is_taken_by_a_folder_with_something_in_it_is_refused(tmp_path):
    for name in ("building", "done"):
        (tmp_path / name).mkdir()
        (tmp_path / name / name).touch()
    with pytest.raises(StorageFailed, match="could not be renamed to done"):
        files.rename_folder(tmp_path / "building", tmp_path / "done")
    assert sorted(os.listdir(tmp_path)) == ["building", "done"]


def test_a_folder_is_removed_with_all_that_is_in_it_and_nothing_that_a_link_leads_to(tmp_path):
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "file").touch()
    folder = tmp_path / "gone"
    (folder / "deep" / "deeper").mkdir(parents=True)
    (folder / "deep" / "file").touch()
    (folder / "link").symlink_to(tmp_path / "kept", target_is_directory=True)
    (folder / "broken").symlink_to(tmp_path / "nowhere")
    files.remove_folder(folder)
    assert os.listdir(tmp_path) == ["kept"]
    assert os.listdir(tmp_path / "kept") == ["file"]


@pytest.mark.parametrize("kind", ["folder", "file", "nothing"])
def test_of_a_link_only_the_link_is_removed_and_a_file_goes_as_a_folder_does(tmp_path, kind):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "kept").touch()
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / kind)
    files.remove_folder(tmp_path / "link")
    files.remove_folder(tmp_path / "file")
    assert os.listdir(tmp_path) == ["folder"]
    assert os.listdir(tmp_path / "folder") == ["kept"]


def test_a_folder_whose_new_name_cannot_be_forced_to_the_disk_keeps_the_old_one(tmp_path):
    (tmp_path / "building").mkdir()
    with file_faults.failing(range(3, 4), errno.EIO) as refused, pytest.raises(StorageFailed) as caught:
        files.rename_folder(tmp_path / "building", tmp_path / "done")
    assert [(operation.name, operation.path) for operation in refused] == [("fsync", str(tmp_path))]
    assert caught.value.where == str(tmp_path / "building")
    assert os.strerror(errno.EIO) in caught.value.what
    assert os.listdir(tmp_path) == ["building"]


@pytest.mark.parametrize("number", [1, 2])
def test_a_numbered_folder_that_a_disk_refuses_is_told(tmp_path, number):
    with file_faults.failing(range(number, number + 1), errno.EIO), pytest.raises(StorageFailed) as caught:
        files.make_numbered_folder(tmp_path, "job")
    assert caught.value.where == str(tmp_path / "job-1")


def test_what_is_no_file_is_not_read(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero"), tmp_path):
        with pytest.raises(StorageFailed, match="it is no regular file"):
            read_bytes(path, 9)


def test_a_folder_that_is_gone_is_removed():
    files.remove_folder(Path("/no/such/folder"))
