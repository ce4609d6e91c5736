"""hasten evaluate: a job's results with the weights of a file, or of a run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.cli.commands import ran

JOBS = """
from support import small_job

def job(width=3):
    made = small_job()
    return small_job(valid=made.train, model=lambda: __import__("torch").nn.Linear(6, width))
"""


@pytest.fixture
def here(tmp_path: Path) -> Path:
    (tmp_path / "judged_jobs.py").write_text(JOBS)
    return tmp_path


def last_results(run: Path) -> dict[str, float]:
    events = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [each for each in events if each["event"] == "evaluated"][-1]["results"]


def test_a_run_is_evaluated_with_its_plan_and_options(here: Path):
    (here / "plan.toml").write_text('[[choice]]\ntechnique = "precision"\nvalue = "bf16"\n')
    assert ran("train judged_jobs.py:job --set width=4 --seed 5 --plan plan.toml")[0] == 0
    code, shown, _ = ran("evaluate judged_jobs.py:job --run runs/job-1 --json")
    assert code == 0
    answer = json.loads(shown)
    assert answer["results"] == last_results(here / "runs" / "job-1")
    assert (answer["data"], answer["samples"], answer["batch_size"]) == ("valid", 40, 8)
    command = "evaluate judged_jobs.py:job --weights runs/job-1/model.safetensors --set width=4 --plan plan.toml"
    assert json.loads(ran(f"{command} --json")[1])["results"] == answer["results"]


def test_results_are_shown_with_the_data_and_the_next_command(here: Path):
    assert ran("train judged_jobs.py:job --max-steps 1")[0] == 0
    line = "evaluate judged_jobs.py:job --weights runs/job-1/model.safetensors --data train --batch-size 5"
    code, shown, _ = ran(line)
    assert code == 0
    first, machine, _, loss, data, weights, *_, following = shown.strip().splitlines()
    assert first == "Evaluating judged_jobs.py:job"
    assert machine.split()[0] == "machine"
    assert loss.split()[:2] == ["verdict", "loss"]
    assert data.startswith("  why       on 40 samples of Job.train, in batches of 5, ")
    assert weights == "  weights   runs/job-1/model.safetensors"
    assert following == "  next      hasten train judged_jobs.py:job --weights runs/job-1/model.safetensors"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("", "neither --weights nor --run is given"),
        ("--weights a.pt --run runs/job-1", "both --weights and --run are given"),
        ("--weights a.pt", "a.pt: there is no such file"),
        ("--weights a.pt --data test", "--data: is 'test'"),
        ("--run nowhere", "nowhere: there is no such folder"),
        ("--run begun", "begun: the run has not ended"),
    ],
)
def test_what_cannot_be_evaluated_ends_with_2_before_the_job_is_loaded(here: Path, options: str, says: str):
    (here / "judged_jobs.py").write_text("raise AssertionError('the job was loaded')")
    (here / "begun" / "checkpoints").mkdir(parents=True)
    code, shown, error = ran(f"evaluate judged_jobs.py:job {options}")
    assert (code, shown) == (2, "")
    assert says in error
    assert "fix" in error


def test_weights_of_a_run_on_an_accelerator_are_evaluated_on_another_device(here: Path):
    assert ran("train judged_jobs.py:job")[0] == 0
    jobs = (here / "judged_jobs.py").read_text()
    (here / "judged_jobs.py").write_text(jobs.replace("valid=made.train", 'valid=made.train, device="cuda:7"'))
    code, shown, _ = ran("evaluate judged_jobs.py:job --run runs/job-1 --device cpu --json")
    assert code == 0
    assert json.loads(shown)["results"] == last_results(here / "runs" / "job-1")
