"""Files that are written whole or not at all, logs that grow by whole lines, and folders."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hasten.checkpoint import files
from hasten.checkpoint.direct_io import read_bytes
from hasten.checkpoint.files import is_leftover, write_new
from hasten.errors import StorageFailed
from support.checkpoint import file_faults

OLD, NEW = b"old content\n", b"new content, which is longer\n"


def test_a_file_gets_its_content_and_nothing_stays_beside_it(tmp_path: Path):
    path = tmp_path / "plan.toml"
    for content in (OLD, NEW):
        files.write_atomically(path, content)
        assert path.read_bytes() == content
        assert os.listdir(tmp_path) == ["plan.toml"]


def test_bytes_reach_the_disk_before_the_name_and_the_name_before_the_return(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    happened: list[str] = []
    force, rename = os.fsync, os.replace

    def record_force(descriptor: int) -> None:
        happened.append("force " + ("folder" if os.path.isdir(f"/proc/self/fd/{descriptor}") else "file"))
        force(descriptor)

    def record_rename(source: Path, target: Path) -> None:
        assert Path(source).read_bytes() == NEW
        happened.append("rename")
        rename(source, target)

    monkeypatch.setattr(os, "fsync", record_force)
    monkeypatch.setattr(os, "replace", record_rename)
    files.write_atomically(tmp_path / "plan.toml", NEW)
    assert happened == ["force file", "rename", "force folder"]


def test_a_refusal_of_the_kernel_leaves_the_old_content(tmp_path: Path):
    path = tmp_path / "plan.toml"
    files.write_atomically(path, OLD)
    with file_faults.file_size_limit(len(OLD)), pytest.raises(StorageFailed) as caught:
        files.write_atomically(path, NEW)
    assert caught.value.where == str(path)
    assert os.strerror(errno.EFBIG) in caught.value.what
    assert "ulimit" in caught.value.fix
    assert path.read_bytes() == OLD
    assert os.listdir(tmp_path) == ["plan.toml"]


@pytest.mark.parametrize("function", ["fsync", "replace"])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS])
def test_a_failing_disk_leaves_the_old_content_and_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: str, code: int
):
    path = tmp_path / "plan.toml"
    files.write_atomically(path, OLD)

    def fail(*arguments: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, function, fail)
    with pytest.raises(StorageFailed) as caught:
        files.write_atomically(path, NEW)
    assert os.strerror(code) in caught.value.what
    assert caught.value.fix
    assert caught.value.exit_code == 15
    assert path.read_bytes() == OLD
    assert os.listdir(tmp_path) == ["plan.toml"]


def test_numbered_folders_count_up_and_never_take_one_that_exists(tmp_path: Path):
    (tmp_path / "runs" / "job-2").mkdir(parents=True)
    (tmp_path / "runs" / "job-3").write_bytes(OLD)
    made = [files.make_numbered_folder(tmp_path / "runs", "job").name for _ in range(3)]
    assert made == ["job-1", "job-4", "job-5"]


# ---- files that grow


def test_lines_are_added_to_what_is_there(tmp_path: Path):
    path = tmp_path / "metrics.jsonl"
    for line in (b"one", b"two"):
        file = files.GrowingFile(path)
        file.add_line(line)
        file.close()
    assert path.read_bytes() == b"one\ntwo\n"


def test_a_torn_line_is_closed_before_the_next(tmp_path: Path):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 1}\n{"step"')
    file = files.GrowingFile(path)
    file.add_line(b"next")
    file.close()
    assert path.read_bytes() == b'{"step": 1}\n{"step"\nnext\n'


def test_a_line_that_does_not_fit_is_taken_back_whole(tmp_path: Path):
    path = tmp_path / "metrics.jsonl"
    file = files.GrowingFile(path)
    file.add_line(b"kept")
    with file_faults.file_size_limit(8), pytest.raises(StorageFailed) as caught:
        file.add_line(b"longer than the rest")
    assert caught.value.where == str(path)
    assert path.read_bytes() == b"kept\n"
    file.add_line(b"again")
    file.close()
    assert path.read_bytes() == b"kept\nagain\n"


def test_a_log_is_never_written_by_a_link(tmp_path: Path):
    (tmp_path / "theirs").write_bytes(b"precious\n")
    (tmp_path / "metrics.jsonl").symlink_to(tmp_path / "theirs")
    for work in (files.GrowingFile, lambda path: files.cut_file(path, 3)):
        with pytest.raises(StorageFailed) as caught:
            work(tmp_path / "metrics.jsonl")
        assert caught.value.where == str(tmp_path / "metrics.jsonl")
    assert (tmp_path / "theirs").read_bytes() == b"precious\n"


@pytest.mark.parametrize("length", [4, 8, 20])
def test_a_log_that_is_cut_keeps_what_it_has_by_another_name(tmp_path: Path, length: int):
    """As a copy of a folder that was made of hard links."""
    path, copy = tmp_path / "metrics.jsonl", tmp_path / "copy"
    path.write_bytes(b"one\ntwo\n")
    os.link(path, copy)
    assert files.cut_file(path, length) == max(length - 8, 0)
    file = files.GrowingFile(path)
    file.add_line(b"new")
    file.close()
    assert copy.read_bytes() == b"one\ntwo\n"
    assert path.read_bytes() == b"one\ntwo\n"[:length] + b"new\n"


# ---- large files, and folders


@pytest.mark.parametrize("make", [files.NewFile, files.NewFile.past_the_cache])
@settings(max_examples=15)
@given(lengths=st.lists(st.sampled_from([0, 1, 511, 4096, 4097, 1 << 20, (1 << 20) + 4096, 3 << 20]), max_size=3))
def test_pieces_of_any_length_are_in_the_file_in_their_order(tmp_path_factory, make, lengths):
    pieces = [bytes([number + 1]) * length for number, length in enumerate(lengths)]
    path = tmp_path_factory.mktemp("new") / "data.bin"
    file = make(path)
    for piece in pieces:
        file.write(piece)
    file.finish()
    assert path.read_bytes() == b"".join(pieces)


def test_what_is_in_a_folder_is_on_the_disk_before_its_name_and_the_name_before_the_return(tmp_path):
    (tmp_path / "building").mkdir()
    with file_faults.recorded() as operations:
        files.rename_folder(tmp_path / "building", tmp_path / "done")
    building, done = str(tmp_path / "building"), str(tmp_path)
    assert operations == [("fsync", building), ("rename", building), ("fsync", done)]


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


def test_a_folder_whose_new_name_cannot_be_forced_to_the_disk_keeps_the_old_one(tmp_path):
    (tmp_path / "building").mkdir()
    with file_faults.failing(range(3, 4), errno.EIO) as refused, pytest.raises(StorageFailed) as caught:
        files.rename_folder(tmp_path / "building", tmp_path / "done")
    assert [(operation.name, operation.path) for operation in refused] == [("fsync", str(tmp_path))]
    assert caught.value.where == str(tmp_path / "building")
    assert os.strerror(errno.EIO) in caught.value.what
    assert os.listdir(tmp_path) == ["building"]


def test_what_is_no_file_is_not_read(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero"), tmp_path):
        with pytest.raises(StorageFailed, match="it is no regular file"):
            read_bytes(path, 9)


# ---- files that replace nothing


BEFORE, LARGE = b"it took days", b"new" * 1000


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
    assert write_new(tmp_path / "a", LARGE)
    (tmp_path / "b").write_bytes(b"")
    assert (tmp_path / "a").read_bytes() == LARGE
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
    assert not write_new(path, LARGE)
    assert os.listdir(tmp_path) == ["a"]
    assert path.is_symlink() or path.is_dir() or path.read_bytes() == b""


@pytest.mark.parametrize("links", [True, False])
def test_a_process_that_is_killed_anywhere_leaves_nothing_or_the_whole_file_under_its_name(
    tmp_path: Path, monkeypatch, links: bool
):
    if not links:
        without_links(monkeypatch)
    path, number = tmp_path / "a", 0
    while file_faults.killed_inside(number := number + 1, lambda: write_new(path, LARGE)):
        assert not path.exists() or path.read_bytes() in ((LARGE,) if links else (LARGE, b""))
        assert all(name == "a" or is_leftover(name) for name in os.listdir(tmp_path))
        path.unlink(missing_ok=True)
    assert number > 4
    assert path.read_bytes() == LARGE


@pytest.mark.parametrize("number", [1, 2, 3, 4], ids=["open", "write", "fsync", "folder"])
def test_a_failing_disk_leaves_no_part_of_a_file_and_names_the_one_that_was_asked_for(tmp_path: Path, number: int):
    path = tmp_path / "a"
    with file_faults.failing([number], errno.ENOSPC), pytest.raises(StorageFailed, match="No space left") as caught:
        write_new(path, LARGE)
    assert caught.value.where == str(path)
    assert not path.exists() or path.read_bytes() == LARGE  # only its folder could not be forced
    assert os.listdir(tmp_path) == ["a"] * path.exists()
