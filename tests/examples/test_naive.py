"""The naive script: the doctor finds in it what the demo's job mends, and it trains as before once that is mended."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from hasten.doctor.fix import mend
from hasten.doctor.lint import look_at
from hasten.doctor.rules import ALL
from hasten.facts.finding import Safety

SCRIPT = Path(__file__).parents[2] / "examples" / "naive.py"
SMALL = ["--epochs", "2", "--width", "8"]
LINE = re.compile(r"epoch (\d+): loss (\d+\.\d{6}), accuracy (0\.\d{4})")


def losses(script: Path) -> list[tuple[str, str, str]]:
    command = [sys.executable, "-W", "ignore", str(script), *SMALL]
    return LINE.findall(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def mended(safeties: set[Safety], folder: Path) -> Path:
    found = mend(SCRIPT, [rule for rule in ALL if rule.safety in safeties])
    assert found is not None
    script = folder / "mended.py"
    script.write_text(found.after)
    return script


def test_it_has_what_the_job_of_the_demo_mends():
    """Useless biases, an update that is not fused, unpinned batches; and what no engine of ours does: gradients in
    evaluations, sums that keep graphs, anomaly detection left on, gradients that are filled with zeros."""
    found = look_at(SCRIPT, {rule.code for rule in ALL}).findings
    assert {each.code for each in found} == {"H102", "H205", "H303", "H304", "H307", "H413", "H417"}


def test_mended_safely_it_trains_to_the_same_losses(tmp_path):
    before = losses(SCRIPT)
    assert len(before) == 2
    assert losses(mended({Safety.SAFE}, tmp_path)) == before


@pytest.mark.parametrize("safeties", [{Safety.SAFE, Safety.UNSAFE}])
def test_mended_unsafely_it_still_trains(safeties, tmp_path):
    (_, first, _), (_, last, _) = losses(mended(safeties, tmp_path))
    assert float(last) < float(first)
