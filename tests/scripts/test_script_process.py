"""The process of a trial is to the script what a process of its own is, at every start."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from hasten.facts.plan import Plan
from hasten.scripts.running.program import Program
from hasten.scripts.trials.script_arms import observe, script_arms
from hasten.tuning.trials.arms import Arms
from hasten.tuning.trials.other_programs import OtherPrograms

CHANGES_ITS_PROCESS = """
    import multiprocessing, os, sys
    import torch
    from torch.utils.data import DataLoader

    multiprocessing.set_start_method("fork")
    os.makedirs("runs", exist_ok=True)
    os.chdir("runs")
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = DataLoader(torch.ones(24, 3), batch_size=4, num_workers=1)
    for batch in loader:
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()
    sys.exit(0)
"""


@pytest.fixture
def arms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Arms:
    users, place = tmp_path / "users", tmp_path / "place"
    users.mkdir()
    place.mkdir()
    (users / "train.py").write_text(dedent(CHANGES_ITS_PROCESS))
    monkeypatch.chdir(users)
    program = Program(name="train.py")
    return script_arms(program, observe(program), place, OtherPrograms(None))


def test_a_script_that_changes_its_process_is_started_again(arms):
    with arms.start("plain", Plan()) as arm:
        assert [arm.window(4).steps for _ in range(3)] == [4, 4, 4]  # it has 6 steps
