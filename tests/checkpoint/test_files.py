"""Files that are written whole or not at all, logs that grow by whole lines, and folders."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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


def test_bytes_reach_the_disk_before_the_name_and_the_name_before_the_return(tmp_path: Path):
    with file_faults.recorded() as operations:
        files.write_atomically(tmp_path / "plan.toml", NEW)
    hidden = operations[0][1]
    steps = [("open", hidden), ("write", hidden), ("fsync", hidden), ("replace", hidden), ("fsync", str(tmp_path))]
    assert operations == steps
    assert (tmp_path / "plan.toml").read_bytes() == NEW


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


@pytest.mark.parametrize("number", [1, 2, 3, 4], ids=["open", "write", "fsync", "replace"])
def test_a_failing_disk_leaves_the_old_content_and_says_what_to_do(tmp_path: Path, number: int):
    path = tmp_path / "plan.toml"
    files.write_atomically(path, OLD)
    with file_faults.failing([number], errno.ENOSPC), pytest.raises(StorageFailed, match="No space left") as caught:
        files.write_atomically(path, NEW)
    assert "free space" in caught.value.fix
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
def test_a_log_is_cut_to_a_length_and_says_how_many_bytes_are_missing(tmp_path: Path, length: int):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b"one\ntwo\n")
    assert files.cut_file(path, length) == max(length - 8, 0)
    assert path.read_bytes() == b"one\ntwo\n"[:length]


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
