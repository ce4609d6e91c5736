"""The proof that a killed run goes on: on jobs that do, on jobs that do not, and without a trace of it afterwards."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from hasten.cli.prove import resume_worker
from hasten.errors import Hang, UserCodeFailed
from hasten.training.setup.job_options import NONE_GIVEN
from hasten.tuning.resume import resume_proof, run_process
from hasten.tuning.resume.resume_proof import Instant, Kill, Phase, ResumeProof, prove_resume
from hasten.tuning.resume.run_process import Errand
from hasten.tuning.trials.child_process import Messages
from hasten.tuning.trials.process_tree import resident_bytes

# Processes are forked while torch's own threads exist; they use none of them. Python says so from 3.12 on.
pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")


class Told:
    """Watches, and keeps what it was told."""

    def __init__(self) -> None:
        self.runs: list[str] = []
        self.kills: list[Kill] = []

    def trains(self, what: str, step: int, steps: int) -> None:
        assert step <= steps
        if self.runs[-1:] != [what]:
            self.runs.append(what)

    def killed(self, number: int, wanted: int, kill: Kill) -> None:
        self.kills.append(kill)
        assert len(self.kills) == number <= wanted


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the jobs, and the present one while the test runs; nothing of a proof is left beside it."""
    shutil.copy(Path(__file__).parents[1] / "jobs" / "resumed_jobs.py", tmp_path)
    (tmp_path / "kept").mkdir()
    monkeypatch.setenv("HASTEN_TEST_FOLDER", str(tmp_path / "kept"))
    monkeypatch.setenv("HASTEN_TEST_PROCESS", str(os.getpid()))
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(run_process, "START_METHOD", "fork")  # torch is loaded, so they begin at once
    return tmp_path


@pytest.fixture(autouse=True)
def nothing_left(monkeypatch: pytest.MonkeyPatch):
    """Neither a process nor a temporary file. Where these lie has a short name, as sockets need it."""
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    with tempfile.TemporaryDirectory(prefix="h-") as temporary:
        monkeypatch.setattr(tempfile, "tempdir", temporary)
        yield
        assert os.listdir(temporary) == []
    assert {child.pid for child in psutil.Process().children(recursive=True)} <= before


def proven(job: str, watch: Told | None = None, plan: str | None = None, **options: Any) -> ResumeProof:
    given = {
        "kills": 2,
        "steps": 24,
        "train": partial(resume_worker.train, NONE_GIVEN),
        "watch": watch or Told(),
    } | options
    return prove_resume(f"resumed_jobs.py:{job}", plan, **given)


def test_a_run_that_is_killed_twice_and_resumed_is_the_one_that_nobody_disturbed():
    told = Told()
    found = proven("job", told)
    assert (found.verdict, found.difference) == ("bit-exact", None)
    assert (found.steps, found.total_steps, found.save_every) == (24, 56, 2)
    assert len(found.kills) == found.wanted == 2
    assert list(found.kills) == told.kills
    assert found.lines == 24 + 3  # of steps, and of three evaluations
    assert told.runs[:2] == ["reference run", "the run to be killed"]


@pytest.mark.proof
def test_runs_are_killed_in_more_than_one_phase_and_end_at_their_planned_end_when_that_comes_first():
    found = proven("short", kills=10, steps=60)
    assert found.verdict == "bit-exact"
    assert (found.steps, found.total_steps) == (14, 14)
    assert found.save_every == 5
    assert found.lines == 14 + 2 + 1
    assert len(found.kills) == 10
    assert len({kill.phase for kill in found.kills}) > 1
    assert any(0 < kill.saved_step < 14 for kill in found.kills)


@pytest.mark.proof
def test_workers_that_stay_do_not_keep_the_runs_from_ending(here: Path):
    stay = '[[choice]]\ntechnique = "persistent_workers"\nvalue = true\n'
    (here / "plan.toml").write_text(f'[[choice]]\ntechnique = "loader_workers"\nvalue = 1\n{stay}')
    assert proven("with_workers", plan="plan.toml", kills=1, steps=10).verdict == "bit-exact"


def test_what_no_checkpoint_keeps_is_found_by_step_and_value():
    told = Told()
    found = proven("counting", told, steps=30, kills=6)
    assert found.verdict == "differs"
    assert found.difference is not None
    assert found.resumed_at is not None
    assert len(found.kills) < found.wanted  # it was found in what the next process would have taken back
    assert found.difference.what == "loss"
    assert found.difference.step == found.resumed_at + 1
    assert found.difference.expected != found.difference.found
    assert told.runs[-1] == "second reference run"
    assert found.itself is None


@pytest.mark.proof
def test_a_job_that_differs_from_itself_is_told_as_such_and_not_as_one_that_cannot_be_resumed():
    found = proven("another_each_time")
    assert found.verdict == "not deterministic"
    assert found.itself is not None
    assert (found.itself.step, found.itself.what) == (1, "loss")


def test_an_error_of_the_job_is_the_proofs_own():
    with pytest.raises(UserCodeFailed, match="ValueError: no such class") as caught:
        proven("faulty")
    assert "resumed_jobs.py" in caught.value.where
    assert "in loss" in caught.value.trace


@pytest.mark.proof
def test_an_error_that_comes_when_the_run_is_to_go_on_says_so():

    def train(errand: Errand, messages: Messages) -> None:
        faulty = replace(errand, job="resumed_jobs.py:faulty")
        resume_worker.train(NONE_GIVEN, faulty if errand.resumes else errand, messages)

    with pytest.raises(UserCodeFailed, match=r"killed, the run was to resume from step \d+: ValueError: no such class"):
        proven("job", train=train)


def test_a_process_that_dies_without_a_word_is_told_so_and_its_temporary_files_go(here: Path):
    with pytest.raises(UserCodeFailed, match="the training process ended with exit code 3"):
        proven("ending")
    made = Path((here / "kept" / "temporary").read_text())
    assert made.is_relative_to(tempfile.gettempdir())
    assert not made.exists()


@pytest.mark.proof
def test_a_run_that_ends_before_anything_can_kill_it_proves_nothing_and_is_not_begun_for_ever(
    monkeypatch: pytest.MonkeyPatch,
):
    late = Instant(phase=Phase.TRAINING, share=1e6)
    monkeypatch.setattr(resume_proof, "draw", lambda kills, seed: [late] * kills)
    found = proven("short", steps=60)
    assert (found.verdict, found.kills, found.runs) == ("not killed", (), 3)


def test_a_process_that_stands_still_is_ended_and_told_with_its_place(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(resume_proof, "LONGEST_SECONDS", 1.0)
    with pytest.raises(Hang, match=r"has taken no step for .* it is in resumed_jobs.py:\d+, in loss"):
        proven("standing_still")


def test_an_interrupt_leaves_no_process_not_even_one_that_left_its_session(here: Path):
    with pytest.raises(KeyboardInterrupt):
        proven("interrupting")
    pids = [int(pid) for pid in (here / "kept" / "pids").read_text().split()]
    assert len(pids) == 2
    assert not any(map(resident_bytes, pids))
