"""A folder that is moved or taken over while a run trains into it is no longer the run's: nothing is written there."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
from torch import nn

import hasten
from hasten.checkpoint.locks.run_lock import run_lock
from hasten.errors import Misconfigured, StorageFailed
from hasten.facts.events import Event, Saved
from hasten.training.saving.last_checkpoint import LastSaved, what_is_left
from support.report.samples import sample_run
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


def last_words_of(folder: Path, change: Callable[[], object]) -> str:
    """Of a run in this folder that has not reported its newest checkpoint, after the change."""
    last = LastSaved(folder)
    last.log(sample_run(0)[0])
    last.log(Saved(step=1, path="run/checkpoints/step-1", bytes=9, reason="", stall_seconds=0.0, seconds=0.1))
    change()
    return what_is_left(last, "hasten train")


def test_last_words_name_the_newest_checkpoint_of_a_run_whose_job_changes_the_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    trained(Path("run"))
    (tmp_path / "elsewhere").mkdir()
    said = last_words_of(Path("run"), lambda: os.chdir("elsewhere"))
    assert said == f"step {STEPS} is saved in run/checkpoints/step-{STEPS}; resume with  hasten train"


def test_last_words_of_a_moved_run_name_no_step_of_the_run_that_took_its_name(tmp_path):
    trained(tmp_path / "run")
    trained(tmp_path / "next")

    def move() -> None:
        (tmp_path / "run").rename(tmp_path / "moved")
        (tmp_path / "next").rename(tmp_path / "run")

    said = last_words_of(tmp_path / "run", move)
    assert said == f"step 1 was saved; {tmp_path / 'run'} was moved: resume it in its new place, with --run-dir"
