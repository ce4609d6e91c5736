"""`--set`, and what stands behind `--`, in every command that loads a job."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import typer.main

from hasten.cli import app
from hasten.cli.application import LOAD_A_JOB
from hasten.facts.trials import Surveyed
from support.cli.commands import ran
from support.ranks.launching import environment
from support.report.samples import sample_records, write_plan

JOBS = """
import argparse
from support import small_job

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, required=True)
args = parser.parse_args()

def going(batch_size=8):
    return small_job(batch_size=batch_size, max_steps=args.steps, epochs=None)

def data(count=2):
    return [(number, args.steps) for number in range(count)]
"""
GIVEN = "--set batch_size=4 -- --steps 3"


@pytest.fixture(autouse=True)
def here(tmp_path: Path) -> Path:
    (tmp_path / "going_jobs.py").write_text(JOBS)
    return tmp_path


def began(run: str) -> tuple[int, int]:
    event = json.loads((Path(run) / "metrics.jsonl").read_text().splitlines()[0])
    return event["batch_size"], event["total_steps"]


def test_every_command_that_takes_set_takes_arguments_of_the_job_too():
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    inner = {name: [command, *getattr(command, "commands", {}).values()] for name, command in commands.items()}
    takes = {name for name, each in inner.items() if any("--set" in item.opts for one in each for item in one.params)}
    assert takes == LOAD_A_JOB


@pytest.mark.parametrize(
    ("line", "following"),
    [
        ("train going_jobs.py:going --run-dir run", "profile going_jobs.py:going"),
        ("schedule going_jobs.py:going", "train going_jobs.py:going"),
        ("doctor going_jobs.py:going", "tune going_jobs.py:going"),
        (
            "plan-mesh going_jobs.py:going --devices 4 --memory 8GB --bandwidth 1GB",
            "train going_jobs.py:going --nproc 4",
        ),
    ],
)
def test_a_command_gives_the_job_its_options_and_repeats_them_in_the_next_one(line: str, following: str):
    code, shown, errors = ran(f"{line} {GIVEN}")
    assert code in (0, 1), errors
    assert shown.splitlines()[-1] == f"  next      hasten {following} {GIVEN}"


def test_a_run_records_its_options_and_resume_takes_them_again():
    assert ran(f"train going_jobs.py:going --run-dir run {GIVEN}")[0] == 0
    assert began("run") == (4, 3)
    code, shown, errors = ran("train going_jobs.py:going --run-dir run --resume")
    assert code == 0, errors
    assert "note      options taken from the run: --set batch_size=4 -- --steps 3" in shown


def test_a_report_repeats_the_options_of_its_plan_or_run():
    words = ("--set", "batch_size=4", "--", "--steps", "3")
    records = [replace(each, options=words) if isinstance(each, Surveyed) else each for each in sample_records(steps=2)]
    write_plan(Path(), records=records)
    assert ran("report plan.toml")[1].splitlines()[-1].endswith(f"job --plan plan.toml {GIVEN}")
    assert f"job --plan plan.toml {GIVEN}" in Path("report.html").read_text()
    assert ran(f"train going_jobs.py:going --run-dir run {GIVEN}")[0] == 0
    assert ran("report run")[1].splitlines()[-1] == f"  next      hasten tune going_jobs.py:going {GIVEN}"
    assert ran("export run -o a.safetensors")[1].splitlines()[-1].endswith(f"--weights a.safetensors {GIVEN}")


def test_a_resumed_run_with_another_value_is_refused_by_what_it_changes():
    assert ran(f"train going_jobs.py:going --run-dir run {GIVEN}")[0] == 0
    code, _, errors = ran("train going_jobs.py:going --run-dir run --resume --set batch_size=8")
    assert code == 2
    assert "batch_size: 4 → 8" in errors


def test_a_data_set_to_pack_has_options_too():
    assert ran("pack going_jobs.py:data shards --set count=3 -- --steps 1")[0] == 0
    assert "3 samples" in ran("pack shards --verify")[1]


def test_every_rank_gets_the_options():
    line = [sys.executable, "-m", "hasten", "train", "going_jobs.py:going", "--nproc", "2", "--run-dir", "run"]
    done = subprocess.run([*line, *GIVEN.split()], env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert began("run") == (4, 3)


def test_a_command_that_loads_no_job_has_nothing_behind_the_dashes():
    assert ran("report plan.toml -- --lr")[0] == 2
