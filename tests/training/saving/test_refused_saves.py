"""A disk that refuses, a folder that somebody else has, a sample that cannot be read: what is saved all the same."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from hasten.checkpoint.store import Checkpoint, Store
from hasten.errors import DataFailed, Misconfigured, StorageFailed
from hasten.training.run_folder import run_directory
from support.training import killed_jobs
from support.training.saved_runs import every, job, notices, resumed, saved_in, saves, trained


@pytest.fixture
def whole(tmp_path) -> Path:
    trained(tmp_path / "whole")
    return tmp_path / "whole"


# ---- a disk that refuses


@pytest.fixture
def refusing(monkeypatch):
    """Let saves fail, by their number from 1 on."""

    def refuse(numbers: set[int], code: int = errno.ENOSPC) -> None:
        count, write = {"saves": 0}, Store.save

        def save(self: Store, contents: Any, threads: int = 1) -> Checkpoint:
            count["saves"] += 1
            if count["saves"] in numbers:
                raise StorageFailed(os.strerror(code), where=str(self.folder), fix="free space on this disk")
            return write(self, contents, threads)

        monkeypatch.setattr(Store, "save", save)

    return refuse


@pytest.mark.fault("disk full, EIO")
def test_a_full_disk_is_told_and_the_training_goes_on(tmp_path, whole, refusing):
    refusing({2, 3})
    events = trained(tmp_path / "run", saving=every(2))
    told = [text for text in notices(events) if "could not be saved" in text]
    assert [("step 4" in told[0]), ("step 6" in told[1]), len(told)] == [True, True, 2]
    assert [step for step, _ in saves(events)] == [2, 8, 10]
    assert killed_jobs.weights(tmp_path / "run") == killed_jobs.weights(whole)


@pytest.mark.fault("disk full, EIO")
def test_three_failures_in_a_row_end_the_run_and_leave_what_was_saved(tmp_path, refusing):
    refusing({2, 3, 4})
    with pytest.raises(StorageFailed, match="3 checkpoints in a row") as caught:
        trained(tmp_path / "run", saving=every(2))
    assert caught.value.exit_code == 15
    (checkpoint,) = Store(tmp_path / "run" / "checkpoints").found()
    assert checkpoint.verify().step == 2


@pytest.mark.fault("disk full, EIO")
def test_too_little_space_is_found_before_the_first_step(tmp_path, monkeypatch):
    def usage(path: Any) -> Any:
        return type("Usage", (), {"free": 500})

    monkeypatch.setattr(run_directory.shutil, "disk_usage", usage)
    with pytest.raises(StorageFailed, match="500 B are free") as caught:
        trained(tmp_path / "run")
    assert caught.value.exit_code == 15
    assert not (tmp_path / "run" / "checkpoints").exists()


# ---- one run in a folder


def test_a_folder_in_which_a_run_trains_is_refused_to_another(tmp_path):
    refused: list[str] = []

    def loss(model: nn.Module, batch: Any) -> Tensor:
        if not refused:
            with pytest.raises(Misconfigured, match=f"process {os.getpid()}") as caught:
                resumed(tmp_path / "run")
            refused.append(caught.value.what)
        return functional.cross_entropy(model(batch[0]), batch[1])

    trained(tmp_path / "run", job(loss=loss))
    assert refused
    assert not (tmp_path / "run" / ".lock").exists()


@pytest.mark.fault("corrupt sample")
def test_a_bad_sample_ends_a_run_that_is_saved_up_to_it(tmp_path):
    class Rows(torch.utils.data.Dataset[Any]):
        def __len__(self) -> int:
            return 40

        def __getitem__(self, index: int) -> Any:
            if index == 30:
                raise OSError(errno.EIO, "unreadable")
            return torch.zeros(6), torch.tensor(0)

    with pytest.raises(DataFailed, match="sample 30"):
        trained(tmp_path / "run", job(train=Rows(), shuffle=False))
    assert saved_in(tmp_path / "run")[0] == 3


def test_an_old_checkpoint_that_cannot_be_removed_is_told_and_the_new_one_counts(tmp_path, monkeypatch):
    def refuse(self: Store, checkpoint: Checkpoint) -> None:
        raise StorageFailed("read-only file system", where=str(checkpoint.path), fix="choose another disk")

    monkeypatch.setattr(Store, "remove", refuse)
    events = trained(tmp_path / "run", saving=every(3))
    assert [step for step, _ in saves(events)] == [3, 6, 9, 10]
    assert all("an old checkpoint was not removed" in text for text in notices(events))
    assert saved_in(tmp_path / "run") == [10, 9, 6, 3]
