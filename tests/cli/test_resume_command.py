"""hasten train --resume: as a run was asked for, with whose run, and every printed command when it is pasted."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

import hasten
from hasten.cli.run_history import newest_run_of
from hasten.training.run_folder.folder_names import ASKED
from hasten.training.run_folder.run_request import RunRequest, asked_in
from support import small_job
from support.cli.commands import ran
from support.training import killed_jobs
from support.training.complete_runs import checkpoints_of

JOBS = """
from pathlib import Path
from torch.nn import functional
from support import small_job

def job():
    calls = []
    def loss(model, batch):
        calls.append(1)
        if len(calls) == 7 and Path("fails").exists():
            raise RuntimeError("as was asked")
        return functional.cross_entropy(model(batch[0]), batch[1])
    return small_job(loss=loss, log_every=1)
"""
OPTIONS = "--epochs 3 --seed 5 --save-every 1 --keep-last 3 --keep-every 2 --grace 7"


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """A folder with two jobs of one name in two files, and the present one while the test runs."""
    for name in ("going_a", "going_b"):
        (tmp_path / f"{name}.py").write_text(JOBS)
    return tmp_path


MOVING = """
import os
from pathlib import Path
from support import small_job

os.chdir(Path(__file__).parent)
Path("data.txt").read_text()

def job():
    return small_job()
"""


def test_a_job_that_works_in_its_own_folder_has_its_run_where_the_command_was_given(here: Path):
    (here / "sub").mkdir()
    (here / "sub" / "moving_job.py").write_text(MOVING)
    (here / "sub" / "data.txt").write_text("")
    hasten.train(small_job(), run_dir="first", receivers=[])
    given = "--weights first/model.safetensors --epochs 1"
    code, shown, _ = ran(f"train sub/moving_job.py:job {given}")
    assert code == 0
    assert [path.name for path in (here / "runs" / "job-1").glob("model*")] == ["model.safetensors"]
    assert not (here / "sub" / "runs").exists()
    assert str(here / "runs" / "job-1" / "model.safetensors") in shown
    os.chdir(here)
    sys.modules.pop("moving_job")
    code, shown, _ = ran("train sub/moving_job.py:job --resume --epochs 3 --allow-change epochs")
    assert code == 0
    assert not (here / "sub" / "runs").exists()
    assert checkpoints_of(here / "runs" / "job-1")[0].step == 15


def broken_off(line: str) -> str:
    """A training that fails in its seventh step; the command that it says to go on with."""
    Path("fails").touch()
    code, _, error = ran(line)
    Path("fails").unlink()
    assert code == 10
    return told_command(error)


def told_command(shown: str) -> str:
    return " ".join(shown.replace("\\\n", " ").split()).rpartition(" next hasten ")[2]


def remembered(run: str) -> RunRequest:
    found = asked_in(Path(run))
    assert found is not None
    return found


def kept(run: str) -> list[int]:
    return [each.step for each in checkpoints_of(Path(run))]


# ── as it was asked for ─────────────────────────────────────────────────────────────────────────────────────────────


def test_the_command_that_is_told_goes_on_as_the_run_was_asked_for(here: Path):
    assert ran(f"train going_a.py:job --run-dir whole {OPTIONS}")[0] == 0
    command = broken_off(f"train going_a.py:job --run-dir run {OPTIONS}")
    assert command == "train going_a.py:job --resume --run-dir run"
    assert ran(command)[0] == 0
    assert killed_jobs.trace(here / "run") == killed_jobs.trace(here / "whole")
    assert kept("run") == kept("whole") == [15, 14, 13, 12, 10, 8, 6, 4, 2]


def test_what_is_given_again_holds_and_is_remembered(here: Path):
    broken_off("train going_a.py:job --run-dir run --save-every 1 --keep-every 2 --tensorboard --batch-size 4")
    line = "train going_a.py:job --run-dir run --resume --keep-every 0 --keep-last 4 --no-tensorboard --save-every 90s"
    code, shown, _ = ran(line)
    assert code == 0
    assert "options taken from the run: --batch-size 4\n" in shown
    asked = remembered("run")
    assert (asked.tensorboard, asked.changes) == (False, {"batch_size": 4})
    saving = asked.saving
    assert (saving.keep_every, saving.keep_last, saving.every_steps, saving.every_seconds) == (None, 4, None, 90)


def test_the_command_that_is_told_allows_the_change_that_was_allowed(here: Path, monkeypatch: pytest.MonkeyPatch):
    """The run may have ended again before its first checkpoint that has it."""
    broken_off("train going_a.py:job --run-dir run --epochs 3")
    Path("fails").touch()
    monkeypatch.setattr("hasten.training.saving.checkpointing.Checkpointing.save_after", lambda *given: None)
    monkeypatch.setattr("hasten.training.saving.checkpointing.Checkpointing.after_step", lambda *given: None)
    _, _, error = ran("train going_a.py:job --run-dir run --resume --epochs 4 --allow-change epochs")
    monkeypatch.undo()
    monkeypatch.chdir(here)
    Path("fails").unlink()
    assert kept("run")[0] == 6
    assert ran(told_command(error))[0] == 0
    assert kept("run")[0] == 20


def test_a_record_of_the_options_that_was_changed_is_refused_and_every_checkpoint_stays(here: Path):
    broken_off("train going_a.py:job --run-dir run --save-every 1 --keep-last 3")
    before = kept("run")
    path = Path("run") / ASKED
    path.write_text(path.read_text().replace('"keep_last": 3', '"keep_last": 5'))
    code, _, error = ran("train going_a.py:job --run-dir run --resume")
    assert code == 15
    assert "asked.json was changed after it was written" in error
    assert "remove asked.json to resume with default options" in error
    assert kept("run") == before
    path.unlink()
    assert ran("train going_a.py:job --run-dir run --resume")[0] == 0


# ── with whose run ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_resume_without_a_folder_goes_on_with_the_newest_run_of_this_very_job(here: Path):
    for file in ("going_a", "going_a", "going_b"):
        broken_off(f"train {file}.py:job")
    (here / "runs" / "job-8").mkdir()
    (here / "runs" / "job-9").write_text("")
    assert ran("train going_a.py:job --resume")[0] == 0
    assert [kept(f"runs/job-{number}")[0] for number in (1, 2, 3)] == [6, 10, 6]
    assert newest_run_of("./going_b.py:job") == Path("runs/job-3")


def test_a_run_that_another_job_began_says_so_and_goes_on(here: Path):
    broken_off("train going_a.py:job --run-dir run")
    code, shown, _ = ran("train going_b.py:job --run-dir run --resume")
    assert code == 0
    assert "note      the run was started by going_a.py:job and is resumed by going_b.py:job\n" in shown
    assert remembered("run").name == "going_b.py:job"


# ── what is refused at once ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("options", "code", "says", "fix"),
    [
        ("--resume --run-dir file", 15, "file: the folder could not be created: ", "a file has this name"),
        ("--resume --run-dir other", 2, "other: it is not a run folder: it contains notes", "name"),
        ("--resume --run-dir new --weights a.pt", 2, "a.pt: there is no such file", "check the path"),
        ("--resume --run-dir new --keep-last 1", 2, "--keep-last", "2"),
        ("--allow-change epochs", 2, "--allow-change: has no effect on a new run", "add --resume"),
    ],
)
def test_what_cannot_be_is_refused_before_the_job_is_loaded(here: Path, options: str, code: int, says: str, fix: str):
    (here / "going_a.py").write_text("raise AssertionError('the job was loaded')")
    (here / "file").write_text("")
    (here / "other").mkdir()
    (here / "other" / "notes").write_text("")
    ended, shown, error = ran(f"train going_a.py:job {options}")
    assert (ended, shown) == (code, "")
    assert says in error
    assert fix in error
    assert not (here / "new").exists()
    assert not (here / "runs").exists() or not list((here / "runs").iterdir())
