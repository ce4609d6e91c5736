"""A script that another library's trainer runs, and the job in the same file, which needs no such library."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

import hasten
from hasten.doctor.lint.linter import check_file
from hasten.doctor.rules import ALL
from hasten.training.setup.load_job import load_job

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
LIBRARIES = ("lightning", "transformers")


def script_of(library: str) -> Path:
    return EXAMPLES / f"{library}_trainer.py"


def results_of_job(library: str) -> dict[str, float]:
    return dict(hasten.train(load_job(f"{script_of(library)}:job"), receivers=[]).results)


@pytest.mark.usefixtures("modules_as_before")
@pytest.mark.parametrize("library", LIBRARIES)
def test_the_job_trains_without_the_library(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, library, None)  # importing it raises
    assert results_of_job(library)["accuracy"] > 0.85


@pytest.mark.parametrize("library", LIBRARIES)
def test_the_doctor_finds_nothing_in_the_script(library: str) -> None:
    assert check_file(script_of(library), ALL).findings == ()


@pytest.mark.proof
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("modules_as_before")
@pytest.mark.parametrize("library", LIBRARIES)
def test_the_trainer_and_the_job_reach_the_same_loss(library: str, tmp_path: Path) -> None:
    """The losses are close and not equal: initial weights and the order of samples differ."""
    pytest.importorskip(library)
    command = [sys.executable, str(script_of(library))]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    ran = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    results = ast.literal_eval(ran.stdout.strip().splitlines()[-1])
    assert results == pytest.approx(results_of_job(library), rel=0.2)
