"""A job's file that trains when it is loaded: every command that loads it says so once."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.cli.commands import ran

SCRIPT = """
import torch
from torch import nn
from support import small_job

model = nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

def train():
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()

def going():
    return small_job()

def data():
    return [(number, 0) for number in range(2)]
"""
CURE = 'put what trains under `if __name__ == "__main__":`'


@pytest.fixture(autouse=True)
def here(tmp_path: Path) -> None:
    (tmp_path / "trains.py").write_text(f"{SCRIPT}\ntrain()\n")
    (tmp_path / "guarded.py").write_text(f'{SCRIPT}\nif __name__ == "__main__":\n    train()\n')


@pytest.mark.parametrize(
    "command",
    [
        "train JOB:going",
        "doctor JOB:going",
        "profile JOB:going",
        "schedule JOB:going",
        "pack JOB:data packed",
        "tune JOB:going --seconds 1 --busy",
    ],
)
def test_training_while_the_file_is_loaded_is_reported_once(command: str):
    code, shown, errors = ran(command.replace("JOB", "trains.py"))
    assert code in (0, 1), errors  # 1: the doctor found something
    assert (shown + errors).count(CURE) == 1
    assert errors.count("s and trained (optimizer steps: 3), as each process that loads it does") == 1


def test_a_file_that_trains_only_as_a_script_is_not_reported():
    code, shown, errors = ran("train guarded.py:going")
    assert code == 0
    assert "__main__" not in shown + errors
