"""`hasten train --nproc N`: one run of several processes, which end together."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import psutil
import pytest
from safetensors.torch import load_file
from torch.testing import assert_close

import hasten
from hasten.facts.plan import make_plan
from hasten.facts.plan_file import plan_to_toml
from support.cli.commands import unwrapped
from support.parallel.launched_jobs import job
from support.ranks.launching import JOBS, command, environment, losses, ran, still_there, until_begun


def test_two_processes_train_what_one_does_and_one_of_them_talks(tmp_path):
    alone = hasten.train(job(), run_dir=tmp_path / "one", receivers=[])
    together = ran(tmp_path, "job", "--nproc", "2", "--run-dir", "two")
    assert together.returncode == 0, together.stderr
    assert losses(tmp_path / "two") == pytest.approx(losses(tmp_path / "one"), rel=1e-5)
    weights = load_file(tmp_path / "two" / "model.safetensors")
    for name, weight in alone.weights.items():
        assert_close(weights[name], weight, rtol=1e-5, atol=1e-6)
    assert together.stdout.count("next") == 1


@pytest.mark.proof
def test_only_the_first_of_several_processes_makes_a_folder(tmp_path):
    assert ran(tmp_path, "job", "--nproc", "2").returncode == 0
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["job-1"]


@pytest.mark.proof
def test_nothing_listens_but_on_loopback(tmp_path):
    assert ran(tmp_path, "listens", "--nproc", "2").returncode == 0
    assert (tmp_path / "listening").read_text() == "127.0.0.1"


@pytest.mark.proof
@pytest.mark.fault("user exception")
def test_a_rank_whose_code_raises_ends_all_and_is_named(tmp_path):
    ended = ran(tmp_path, "raises", "--nproc", "2")
    assert ended.returncode == 10
    assert "ValueError: the second cannot go on" in unwrapped(ended.stderr)
    assert "rank 1" in ended.stderr
    assert "fault of hasten" not in ended.stderr
    assert still_there(tmp_path) == []


@pytest.mark.proof
@pytest.mark.fault("user exception")
def test_a_rank_that_is_asked_to_end_while_it_says_why_says_so_first(tmp_path):
    ended = ran(tmp_path, "raises_and_the_other_is_asked_to_end", "--nproc", "2")
    assert ended.returncode == 10
    assert "  ended     by rank 1; no step was saved yet" in ended.stderr


@pytest.mark.fault("user exception")
@pytest.mark.proof
@pytest.mark.parametrize(
    ("function", "code", "told"),
    [
        ("raises_in_the_first_stage", 10, "ValueError: this stage cannot go on"),
        ("raises_in_the_last_stage", 10, "ValueError: this stage cannot go on"),
        ("writes_in_a_stage", 2, "a stage fails on the first batch"),
        ("recomputes_in_a_stage", 2, "use activation_checkpointing of the plan to recompute"),
    ],
)
def test_what_a_stage_of_a_pipeline_raises_ends_all_and_is_told(tmp_path, function, code, told):
    (tmp_path / "stages.toml").write_text(plan_to_toml(make_plan(pipeline=2)))
    ended = ran(tmp_path, function, "--nproc", "2", "--plan", "stages.toml")
    assert ended.returncode == code, ended.stderr
    assert told in unwrapped(ended.stderr)
    assert "connection" not in ended.stderr
    assert still_there(tmp_path) == []


@pytest.mark.trap(23)
@pytest.mark.fault("one rank dies, a collective hangs")
def test_a_rank_that_is_killed_ends_all_and_is_named(tmp_path):
    ended = ran(tmp_path, "killed", "--nproc", "2")
    assert ended.returncode == 14
    assert "rank 1: was ended by SIGKILL" in ended.stderr
    assert "fault of hasten" not in ended.stderr
    assert still_there(tmp_path) == []


@pytest.mark.proof  # the launcher gives a process that hangs half a minute to end
@pytest.mark.fault("one rank dies, a collective hangs")
def test_a_rank_that_hangs_ends_all_and_is_named(tmp_path):
    ended = subprocess.run(
        command("hangs", "--nproc", "2"),
        cwd=tmp_path,
        env=environment() | {"HASTEN_WAIT_SECONDS": "4"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 14
    assert "rank 1: the other ranks waited 4 s for it" in ended.stderr
    assert "fault of hasten" not in ended.stderr
    assert still_there(tmp_path) == []


def test_more_processes_than_a_launcher_has_started_are_refused(tmp_path):
    told = {"WORLD_SIZE": "2", "RANK": "0", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}
    ended = subprocess.run(
        command("job", "--nproc", "3"),
        cwd=tmp_path,
        env=environment() | told,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 2
    assert "asks for 3 processes, but a launcher has started 2" in ended.stderr


@pytest.mark.proof
def test_ctrl_c_to_the_command_ends_every_process(tmp_path):
    process = subprocess.Popen(
        command("waits", "--nproc", "2"), cwd=tmp_path, env=environment(), stderr=subprocess.PIPE, text=True
    )
    until_begun(tmp_path / "begun", process)
    process.send_signal(signal.SIGINT)
    _, told = process.communicate()
    assert process.returncode == 130, told
    assert still_there(tmp_path) == []


@pytest.mark.proof
def test_ranks_end_with_their_run_although_their_workers_stay(tmp_path):
    ended = ran(tmp_path, "with_workers_that_stay", "--nproc", "2")
    assert ended.returncode == 0, ended.stderr
    assert "why       the planned run is complete" in ended.stdout
    assert still_there(tmp_path) == []


@pytest.mark.proof
def test_a_launcher_that_is_killed_leaves_no_rank(tmp_path):
    process = subprocess.Popen(command("waits", "--nproc", "2"), cwd=tmp_path, env=environment())
    until_begun(tmp_path / "begun", process)
    ranks = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    process.wait()
    psutil.wait_procs(ranks, timeout=10)
    assert still_there(tmp_path) == []


AGAIN = """
import hasten
from launched_jobs import job

for _ in range(5):
    assert hasten.train(job(), receivers=[]).steps == 10
"""


@pytest.mark.proof
def test_one_script_trains_again_and_again_on_the_same_processes(tmp_path):
    (tmp_path / "again.py").write_text(AGAIN)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "again.py"]
    places = environment()
    places["PYTHONPATH"] = os.pathsep.join([str(JOBS.parent), places["PYTHONPATH"]])
    ended = subprocess.run(torchrun, cwd=tmp_path, env=places, capture_output=True, text=True, check=False, timeout=150)
    assert ended.returncode == 0, ended.stderr


@pytest.mark.proof
def test_a_launcher_that_starts_all_anew_goes_on_with_the_run(tmp_path):
    """From the step behind the last one that was saved, with the losses of a run that nothing has cut."""
    assert ran(tmp_path, "job", "--nproc", "2", "--run-dir", "whole").returncode == 0
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--max-restarts", "1", "-m"]
    told = command("dies_once", "--run-dir", "cut", "--save-every", "1")[2:]
    ended = subprocess.run(
        [*torchrun, *told], cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False, timeout=120
    )
    assert ended.returncode == 0, ended.stderr
    assert (tmp_path / "died").exists()
    assert losses(tmp_path / "cut") == losses(tmp_path / "whole")
