"""Runs of several processes are saved by one of them, and go on on as many, more or fewer."""

from __future__ import annotations

import signal
import subprocess

import pytest

from support.ranks.launching import command, environment, losses, ran, still_there, until_begun

TWO = ("--nproc", "2")


@pytest.mark.proof
@pytest.mark.trap(36)
def test_a_run_of_two_processes_goes_on_as_if_it_had_never_ended(tmp_path):
    whole = ran(tmp_path, "cut_short_with_dropout", *TWO, "--run-dir", "whole")
    assert whole.returncode == 0, whole.stderr
    (tmp_path / "cut").touch()
    begun = ran(tmp_path, "cut_short_with_dropout", *TWO, "--run-dir", "cut_run", "--save-every", "3")
    (tmp_path / "cut").unlink()
    assert begun.returncode == 10, begun.stderr
    assert "step-6" in begun.stderr
    ended = ran(tmp_path, "cut_short_with_dropout", *TWO, "--run-dir", "cut_run", "--resume")
    assert ended.returncode == 0, ended.stderr
    assert losses(tmp_path / "cut_run") == losses(tmp_path / "whole")


@pytest.mark.proof
def test_a_checkpoint_that_is_due_by_time_is_saved_once(tmp_path):
    ended = ran(tmp_path, "job", *TWO, "--run-dir", "run", "--save-every", "1h", "--keep-every", "1")
    assert ended.returncode == 0, ended.stderr
    saved = sorted(int(path.name.removeprefix("step-")) for path in (tmp_path / "run" / "checkpoints").glob("step-*"))
    assert saved == [2, 10]  # the first is due at once, and agreed on one step later; the last is the end


@pytest.mark.parametrize(
    ("job", "number"),
    [
        ("waits", signal.SIGTERM),
        pytest.param("waits", signal.SIGHUP, marks=pytest.mark.proof),
        pytest.param("waits", signal.SIGUSR1, marks=pytest.mark.proof),
        pytest.param("waits_on_workers", signal.SIGTERM, marks=pytest.mark.proof),
    ],
)
def test_a_run_of_several_processes_that_is_asked_to_end_is_saved(job, number, tmp_path):
    process = subprocess.Popen(
        command(job, *TWO, "--run-dir", "run"), cwd=tmp_path, env=environment(), stderr=subprocess.PIPE, text=True
    )
    until_begun(tmp_path / "begun", process)
    process.send_signal(number)
    _, told = process.communicate()
    assert process.returncode == 143, told
    assert "saving a checkpoint after this step" in told
    assert f"  ended     by {signal.Signals(number).name}; " in told
    assert "--resume --run-dir run --nproc 2" in " ".join(told.replace("\\\n", "").split())
    assert [*(tmp_path / "run" / "checkpoints").glob("step-*")]
    assert still_there(tmp_path) == []
