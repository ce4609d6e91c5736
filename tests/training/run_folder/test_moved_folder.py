"""A folder that is moved or taken over while a run trains into it is no longer the run's: nothing is written there."""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path

import pytest
from torch import nn

import hasten
from hasten.checkpoint.locks.run_lock import run_lock
from hasten.errors import Misconfigured, StorageFailed
from hasten.facts.events import Event, Saved
from support.training.saved_runs import STEPS, check_same, every, job, resumed, saved_in, trained


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_a_job_may_change_the_working_directory_and_its_run_stays_where_it_began(tmp_path, monkeypatch):
    (tmp_path / "elsewhere" / "run").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)

    def model() -> nn.Module:
        os.chdir(tmp_path / "elsewhere")
        return nn.Linear(6, 3)

    trained(Path("run"), job(model=model))
    assert content(tmp_path / "elsewhere") == {}
    assert saved_in(tmp_path / "run")[0] == STEPS
    assert (tmp_path / "run" / "model.safetensors").exists()
    assert not (tmp_path / "run" / ".lock").exists()


class MovedWhenSaved:
    """Moves the run's folder away once the checkpoint of step 2 is on the disk, and lets another run have its name."""

    def __init__(self, folder: Path, other: Path) -> None:
        self._folder, self._other, self.held = folder, other, ExitStack()
        self.had: dict[str, bytes] = {}

    def log(self, event: Event) -> None:
        if isinstance(event, Saved) and event.step == 2:
            self._folder.rename(self._folder.with_name("moved"))
            self._other.rename(self._folder)
            self.held.enter_context(run_lock(self._folder))
            self.had = content(self._folder)

    def close(self) -> None:
        """Nothing is open."""


def test_a_run_whose_folder_was_moved_ends_leaves_the_next_one_alone_and_resumes_in_its_new_place(tmp_path):
    trained(tmp_path / "next", job(seed=5), saving=every(3))
    trained(tmp_path / "whole", saving=every(2))
    moved = MovedWhenSaved(tmp_path / "run", tmp_path / "next")
    with moved.held:
        with pytest.raises(StorageFailed, match="was moved or removed while this run was training") as caught:
            hasten.train(job(), run_dir=tmp_path / "run", receivers=[moved], saving=every(2))
        assert (caught.value.exit_code, caught.value.where) == (15, str(tmp_path / "run"))
        assert "resume the run in its new place" in caught.value.fix
        assert content(tmp_path / "run") == moved.had
        with pytest.raises(Misconfigured, match="is training in this folder"):
            resumed(tmp_path / "run")
    assert saved_in(tmp_path / "moved") == [2]
    resumed(tmp_path / "moved", saving=every(2))
    check_same(tmp_path / "moved", tmp_path / "whole")
