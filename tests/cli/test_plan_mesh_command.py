"""hasten plan-mesh: what it says, what a machine reads of it, and how it ends."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from hasten.facts.plan_file import plan_from_toml
from support.cli.commands import ran

JOBS = """
from support.tune.mesh_jobs import mesh_job

def job():
    print("of the job")
    return mesh_job(width=64, layers=4)

def odd():
    return mesh_job(width=64, layers=4, batch_size=3)
"""
CLUSTER = "--memory 80GB --bandwidth 50GB"


@pytest.fixture(autouse=True)
def here(tmp_path: Path) -> Path:
    """A folder with jobs, and the present one while the test runs."""
    (tmp_path / "jobs_of_meshes.py").write_text(JOBS)
    return tmp_path


def entries(shown: str) -> dict[str, object]:
    """Of the plan that is shown."""
    _, _, text = shown.partition(" [[choice]]\n")
    plan = plan_from_toml("[[choice]]\n" + text.partition("\n  next ")[0])
    return {each.choice.technique: each.choice.value for each in plan.choices}


def last_line(shown: str) -> str:
    return " ".join(shown.strip().splitlines()[-1].split())


def test_a_job_is_planned_on_paper_and_the_next_command_trains_it():
    code, shown, _ = ran(f"plan-mesh jobs_of_meshes.py:job --devices 2 {CLUSTER}")
    assert code == 0
    assert "Planning meshes of jobs_of_meshes.py:job\n" in shown
    assert "2 devices, estimated\n" in shown
    assert "208,192 parameters: weights 813 KiB, gradients 813 KiB, optimizer state 1.59 MiB" in shown
    assert "an upper bound" in shown
    assert "no entry is needed" in shown
    assert last_line(shown) == "next hasten train jobs_of_meshes.py:job --nproc 2"


def test_what_does_not_fit_whole_is_planned_in_parts_as_entries_of_a_plan():
    code, shown, _ = ran("plan-mesh jobs_of_meshes.py:job --devices 4 --memory 2.8MB --bandwidth 1GB")
    assert code == 0
    assert entries(shown) == {"shard": "zero2", "tensor": 2, "microbatch": 2}
    assert "first data 1 × tensor 1 × pipeline 4, if microbatches of 1" in " ".join(shown.split())
    assert last_line(shown) == "next hasten train jobs_of_meshes.py:job --plan plan.toml --nproc 4"


def test_what_fits_nowhere_is_said_and_not_planned():
    code, shown, _ = ran("plan-mesh jobs_of_meshes.py:job --devices 2 --memory 1KB --bandwidth 50GB")
    assert code == 0
    assert "0 fit" in shown
    assert "no room" in shown
    assert "[[choice]]" not in shown
    assert last_line(shown) == "next hasten explain activation_checkpointing"


def test_where_no_mesh_is_legal_the_arithmetic_is_told():
    code, shown, _ = ran(f"plan-mesh jobs_of_meshes.py:odd --devices 64 {CLUSTER}")
    assert code == 0
    assert re.search("64×1×1 +a batch of 3 cannot be divided over data: 3 = 0 × 64 \\+ 3", shown)
    assert last_line(shown) == "next hasten explain tensor"


@pytest.mark.parametrize("option", ["--json", "--format json"])
def test_a_machine_reads_everything_and_what_the_job_prints_goes_elsewhere(option: str):
    code, shown, error = ran(f"plan-mesh jobs_of_meshes.py:job --devices 4 {option} {CLUSTER}")
    found = json.loads(shown)
    assert code == 0
    assert "of the job" in error
    assert found["estimate"] is True
    assert found["sentence"].startswith("Best mesh: ")
    assert found["needs"]["batch_size"] == 16
    assert {each["mesh"]["data"] * each["mesh"]["tensor"] * each["mesh"]["pipeline"] for each in found["legal"]} == {4}
    for each in found["legal"]:
        assert each["memory_bytes"] == sum(each["memory"].values())
        assert each["sent_bytes"] == sum(each["sent"].values())


@pytest.mark.parametrize(
    ("options", "says", "fix"),
    [
        ("--devices 4 --memory 80 --bandwidth 50GB", "--memory: is '80'", "80GB or 80GiB"),
        ("--devices 4 --memory 80GB --bandwidth 50GB --flops 300", "--flops: is '300'", "300T"),
        ("--devices 12 --memory 80GB --bandwidth 50GB", "12 = 1 × 8 + 4", "--per-machine"),
    ],
)
def test_what_cannot_be_meant_is_refused_before_the_job_is_loaded(here: Path, options: str, says: str, fix: str):
    (here / "jobs_of_meshes.py").write_text("raise AssertionError('the job was loaded')")
    code, _, error = ran(f"plan-mesh jobs_of_meshes.py:job {options}")
    assert code == 2
    assert says in error
    assert fix in error
