"""The naive script: the doctor finds in it what its job and a plan mend, and it trains as it is and mended."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest
from PIL import Image

from hasten.doctor.lint.fixes import mend
from hasten.doctor.lint.linter import check_file
from hasten.doctor.rules import ALL
from hasten.facts.finding import Safety

SCRIPT = Path(__file__).parents[2] / "examples" / "naive.py"
SMALL = ["--epochs", "2", "--width", "8", "--batch-size", "16"]
LOSS = re.compile(r"loss (\d+\.\d{6})")


def losses(script: Path, photos: Path) -> list[float]:
    """Of every step."""
    command = [sys.executable, "-W", "ignore", str(script), *SMALL, "--data", str(photos)]
    environment = {**os.environ, "PYTHONPATH": str(SCRIPT.parent)}  # of what it imports
    told = subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout
    assert "valid accuracy" in told
    return list(map(float, LOSS.findall(told)))


def mended(safeties: set[Safety], folder: Path) -> Path:
    found = mend(SCRIPT, [rule for rule in ALL if rule.safety in safeties])
    assert found is not None
    script = folder / "mended.py"
    script.write_text(found.after)
    return script


def test_it_has_what_its_job_and_a_plan_mend():
    """Samples loaded by the training itself, unpinned batches, useless biases, an update that is not fused; and what no
    engine of ours does: numbers read in every step, gradients in evaluations, one process for all devices."""
    found = check_file(SCRIPT, ALL).findings
    assert {each.code for each in found} == {"H101", "H102", "H201", "H307", "H413", "H417", "H501"}


@pytest.mark.proof
def test_it_trains_as_it_is_and_mended(tmp_path):
    for part, each, level in product(("train", "valid"), range(40), (60, 200)):
        (place := tmp_path / "photos" / part / str(level)).mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (80, 70), (level + each % 9,) * 3).save(place / f"{each}.jpg")
    for script in (SCRIPT, mended({Safety.SAFE, Safety.UNSAFE}, tmp_path)):
        found = losses(script, tmp_path / "photos")
        assert len(found) == 10
        assert sum(found[-3:]) < sum(found[:3])
