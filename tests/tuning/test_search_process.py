"""hasten.tune: the search for a plan, from a script or a notebook."""

import importlib.util
import os
import signal
import sys
from pathlib import Path
from types import ModuleType

import pytest

import hasten
from hasten.errors import Misconfigured, UserCodeFailed
from hasten.tuning.search_process import found_apart
from support import small_job

JOBS = Path(__file__).parent / "jobs"


@pytest.fixture
def clocked(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    specification = importlib.util.spec_from_file_location("clocked_jobs", JOBS / "clocked_jobs.py")
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    monkeypatch.setitem(sys.modules, "clocked_jobs", module)
    specification.loader.exec_module(module)
    return module


@pytest.mark.proof
def test_the_plan_of_a_function_is_found_and_nothing_is_left(
    clocked: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.chdir(tmp_path)
    plan = hasten.tune(clocked.job, seconds=600, allow="rounding", busy=True)
    assert plan.value_of("microbatch") == 4
    shown = capsys.readouterr().err
    assert "the baseline again" in shown
    assert "× faster: " in shown
    assert [*tmp_path.iterdir()] == []


def test_an_interrupt_returns_what_was_found_so_far(
    clocked: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    class Interrupting:
        """In place of sys.stderr: Ctrl-C at the first line of progress."""

        sent = False

        def write(self, text: str) -> None:
            if not self.sent:
                self.sent = True
                os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "stderr", Interrupting())
    assert hasten.tune(clocked.job, seconds=600, busy=True).choices == ()
    assert not (tmp_path / "plan.toml").exists()


def test_the_answer_is_found_above_what_else_is_printed_at_exit(clocked: ModuleType, monkeypatch: pytest.MonkeyPatch):
    """As torch warns of leaked semaphores then, on standard error."""
    printed = ['{"sentence": "No faster", "plan": null}\n', "UserWarning: leaked\n"]
    monkeypatch.setattr("hasten.tuning.search_process._run", lambda *_: (0, printed))
    assert found_apart(clocked.job, seconds=1, allow="bits", output=None, busy=True, show=print).answer == {
        "sentence": "No faster",
        "plan": None,
    }
    printed[0] = '{"error": "is wrong", "where": "job", "fix": ""}\n'
    monkeypatch.setattr("hasten.tuning.search_process._run", lambda *_: (Misconfigured.exit_code, printed))
    with pytest.raises(Misconfigured, match="is wrong"):
        found_apart(clocked.job, seconds=1, allow="bits", output=None, busy=True, show=print)


def named_job() -> hasten.Job:
    return small_job()


named_job.__module__ = "__main__"


@pytest.mark.parametrize("job", [named_job, lambda: small_job(), small_job()], ids=["__main__", "lambda", "Job"])
def test_what_no_other_process_can_load_is_refused_with_what_to_write(job: object):
    with pytest.raises(Misconfigured, match="trials cannot") as caught:
        hasten.tune(job)  # type: ignore[arg-type]
    assert "%%writefile job.py" in caught.value.fix


def test_a_failure_is_raised_as_the_command_shows_it(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(Misconfigured, match="--allow is 'all'") as caught:
        hasten.tune("digits.py:job", allow="all")  # type: ignore[arg-type]
    assert caught.value.fix == "write one of bits, rounding, statistics, training"
    assert "--allow is 'all'" in capsys.readouterr().err
    with pytest.raises(Misconfigured) as caught:
        hasten.tune("nowhere/job.py:job")
    assert (caught.value.what, caught.value.where) == ("there is no such file", "nowhere/job.py")


@pytest.mark.proof
def test_a_failure_of_the_users_code_is_raised_with_its_line():
    with pytest.raises(UserCodeFailed, match=r"trial_jobs.py:\d+, in .*ZeroDivisionError: in the middle"):
        hasten.tune(f"{JOBS / 'trial_jobs.py'}:job_raising", busy=True)
