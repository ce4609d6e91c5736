"""Files that are whole or not at all, whatever the disk does."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hasten.checkpoint import files
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
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EACCES, errno.EROFS])
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


def test_an_interrupt_leaves_nothing_beside_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def interrupt(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        files.write_atomically(tmp_path / "plan.toml", NEW)
    assert os.listdir(tmp_path) == []


def test_a_missing_folder_and_a_file_in_the_way_are_told_apart(tmp_path: Path):
    with pytest.raises(StorageFailed, match="make the folder first"):
        files.write_atomically(tmp_path / "missing" / "plan.toml", NEW)
    (tmp_path / "file").write_bytes(OLD)
    with pytest.raises(StorageFailed, match="a part of this path is a file"):
        files.make_folder(tmp_path / "file" / "below")
    with pytest.raises(StorageFailed, match="a file has this name"):
        files.make_folder(tmp_path / "file")


def test_a_folder_is_made_with_those_above_it_and_may_exist(tmp_path: Path):
    for _ in range(2):
        files.make_folder(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").is_dir()


def test_numbered_folders_count_up_and_never_take_one_that_exists(tmp_path: Path):
    (tmp_path / "runs" / "job-2").mkdir(parents=True)
    (tmp_path / "runs" / "job-3").write_bytes(OLD)
    made = [files.make_numbered_folder(tmp_path / "runs", "job").name for _ in range(3)]
    assert made == ["job-1", "job-4", "job-5"]


def test_only_an_empty_folder_is_removed(tmp_path: Path):
    full, empty = tmp_path / "full", tmp_path / "empty"
    full.mkdir()
    empty.mkdir()
    (full / "metrics.jsonl").write_bytes(OLD)
    for folder in (full, empty, tmp_path / "missing"):
        files.remove_empty_folder(folder)
    assert [path.name for path in tmp_path.iterdir()] == ["full"]


def test_a_probe_leaves_a_writable_folder_as_it_was_and_finds_one_that_is_not(tmp_path: Path):
    files.check_writable(tmp_path)
    assert os.listdir(tmp_path) == []
    with file_faults.file_size_limit(0), pytest.raises(StorageFailed):
        files.check_writable(tmp_path)
    assert os.listdir(tmp_path) == []


# ---- files that grow


def test_lines_are_added_to_what_is_there(tmp_path: Path):
    path = tmp_path / "metrics.jsonl"
    for line in (b"one", b"two"):
        file = files.open_for_append(path)
        file.add_line(line)
        file.close()
    assert path.read_bytes() == b"one\ntwo\n"


def test_a_torn_line_is_closed_before_the_next(tmp_path: Path):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 1}\n{"step"')
    file = files.open_for_append(path)
    file.add_line(b"next")
    file.close()
    assert path.read_bytes() == b'{"step": 1}\n{"step"\nnext\n'


def test_a_line_that_does_not_fit_is_taken_back_whole(tmp_path: Path):
    path = tmp_path / "metrics.jsonl"
    file = files.open_for_append(path)
    file.add_line(b"kept")
    with file_faults.file_size_limit(8), pytest.raises(StorageFailed) as caught:
        file.add_line(b"longer than the rest")
    assert caught.value.where == str(path)
    assert path.read_bytes() == b"kept\n"
    file.add_line(b"again")
    file.close()
    assert path.read_bytes() == b"kept\nagain\n"


def test_half_a_line_that_cannot_be_taken_back_at_once_is_taken_back_before_the_next(tmp_path: Path, monkeypatch):
    path = tmp_path / "metrics.jsonl"
    file = files.open_for_append(path)
    file.add_line(b"kept")
    with monkeypatch.context() as failing:
        failing.setattr(file, "_write", lambda data: (file._file.write(data[:3]), cannot())[1])
        failing.setattr(file, "_file", Untruncatable(file._file))
        for _ in range(2):
            with pytest.raises(StorageFailed):
                file.add_line(b"torn")
    file.add_line(b"again")
    file.close()
    assert path.read_bytes() == b"kept\nagain\n"


def cannot(*_: object) -> None:
    raise OSError(errno.EIO, "the disk is gone")


class Untruncatable:
    truncate = cannot

    def __init__(self, file: Any) -> None:
        self._file = file

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def test_a_log_is_never_written_by_a_link(tmp_path: Path):
    (tmp_path / "theirs").write_bytes(b"precious\n")
    (tmp_path / "metrics.jsonl").symlink_to(tmp_path / "theirs")
    for work in (files.open_for_append, lambda path: files.cut_file(path, 3)):
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
    file = files.open_for_append(path)
    file.add_line(b"new")
    file.close()
    assert copy.read_bytes() == b"one\ntwo\n"
    assert path.read_bytes() == b"one\ntwo\n"[:length] + b"new\n"


def test_a_line_outlives_the_process_that_wrote_it(tmp_path: Path):
    path = tmp_path / "metrics.jsonl"
    program = (
        "import os, signal, sys; from pathlib import Path; from hasten.checkpoint.files import open_for_append;"
        "file = open_for_append(Path(sys.argv[1])); file.add_line(b'one'); os.kill(os.getpid(), signal.SIGKILL)"
    )
    subprocess.run([sys.executable, "-c", program, str(path)], check=False)
    assert path.read_bytes() == b"one\n"


def test_a_log_where_none_can_be_is_refused(tmp_path: Path):
    with pytest.raises(StorageFailed, match="a folder has this name"):
        files.open_for_append(tmp_path)
