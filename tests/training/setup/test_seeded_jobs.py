"""A job that draws its data draws the same data whenever it is loaded; one that cannot is named."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import hasten
from hasten.errors import Misconfigured
from hasten.facts.plan import Plan, make_plan
from hasten.training.setup.load_job import load_job
from hasten.tuning.trials.arms import Arms
from support import small_job
from support.cli.commands import ran

JOB = """
import os, random, time
from pathlib import Path

import numpy as np
import torch
from torch import nn

import hasten

{at_import}

def rows():
    {draws}

class Noisy(nn.Linear):
    def __init__(self):
        super().__init__(4, 3)
        self.register_buffer("noise", torch.from_numpy(np.random.randn(3)).float() * random.random())

    def forward(self, rows):
        return super().forward(rows) + self.noise

def job():
    table = torch.as_tensor(rows(), dtype=torch.float32)
    with Path(__file__).with_name("built.txt").open("a") as file:
        file.write(table.numpy().tobytes().hex() + "\\n")
    return hasten.Job(
        model=Noisy,
        loss=hasten.supervised(nn.functional.cross_entropy),
        optimizer=lambda params: torch.optim.SGD(params, lr=0.1),
        train=(table, torch.arange(40) % 3),
        valid=(table, torch.arange(40) % 3),
        batch_size=8,
        epochs=2,
        log_every=1,
    )
"""
IN_FUNCTION = {
    "torch": "return torch.randn(40, 4)",
    "NumPy": "return np.random.randn(40, 4)",
    "Python": "found = [[number + column / 9 for column in range(4)] for number in range(40)]\n"
    "    random.shuffle(found)\n"
    "    return found",
}
AT_IMPORT = {
    "torch": "TABLE = torch.randn(40, 4)",
    "NumPy": "TABLE = np.random.randn(40, 4)",
    "Python": "TABLE = [[random.random() for _ in range(4)] for _ in range(40)]",
}
NEVER_THE_SAME = {
    "a generator without a seed": "return np.random.default_rng().random((40, 4))",
    "the system": "return np.frombuffer(os.urandom(160), np.uint8).reshape(40, 4).copy()",
    "the clock": "torch.manual_seed(time.perf_counter_ns())\n    return torch.randn(40, 4)",
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    before = {*sys.modules}
    yield tmp_path
    for name in {*sys.modules} - before:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def write(folder: Path, draws: str, at_import: str = "") -> None:
    (folder / "drawing.py").write_text(JOB.format(draws=draws, at_import=at_import))


def draw_elsewhere() -> None:
    """As whatever ran before in this process."""
    torch.seed()
    np.random.seed()
    random.seed()


def built(folder: Path) -> list[str]:
    return (folder / "built.txt").read_text().splitlines()


def command(line: str) -> None:
    draw_elsewhere()
    code, _, told = ran(line)
    assert code in ((0, 1) if line.startswith("doctor") else (0,)), told  # 1: it has found something


def losses(folder: Path) -> list[Any]:
    events = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [event.get("loss", event.get("results")) for event in events if event["event"] in ("trained", "evaluated")]


@pytest.mark.parametrize("generator", IN_FUNCTION)
@pytest.mark.parametrize("when", ["in the function", "at import"])
def test_a_job_draws_the_same_data_whatever_was_drawn_before_it_is_loaded(folder, generator, when):
    if when == "at import":
        write(folder, "return TABLE", AT_IMPORT[generator])
    else:
        write(folder, IN_FUNCTION[generator])
    for _ in range(3):
        draw_elsewhere()
        load_job("drawing.py:job")
    assert len(built(folder)) == 3
    assert len({*built(folder)}) == 1


def test_a_module_that_is_loaded_already_draws_the_same_data_again(folder):
    write(folder, IN_FUNCTION["torch"], AT_IMPORT["torch"])
    for _ in range(2):
        draw_elsewhere()
        load_job("drawing:job")
    assert len({*built(folder)}) == 1


@pytest.mark.proof
def test_three_equal_commands_train_the_same(folder):
    write(folder, IN_FUNCTION["torch"])
    for number in range(3):
        command(f"train drawing.py:job --run-dir runs/{number}")
    first, *others = (losses(folder / "runs" / str(number)) for number in range(3))
    assert len(first) == 12  # ten steps and two evaluations
    assert others == [first, first]


@pytest.mark.proof
def test_every_command_that_loads_a_job_builds_the_same_data(folder):
    write(folder, IN_FUNCTION["torch"])
    for line in (
        "train drawing.py:job --run-dir run --max-steps 5",
        "train drawing.py:job --run-dir run --resume",
        "schedule drawing.py:job",
        "profile drawing.py:job",
        "doctor drawing.py:job",
    ):
        before = len(built(folder)) if (folder / "built.txt").exists() else 0
        command(line)
        assert len(built(folder)) > before, line
    arms = Arms("drawing.py:job")
    with arms.start("plain", Plan()), arms.start("other", make_plan(microbatch=4)):
        pass
    assert len({*built(folder)}) == 1


@pytest.mark.proof
def test_the_commands_seed_is_that_of_the_data_too(folder):
    write(folder, IN_FUNCTION["torch"])
    for seed in (0, 1, 1):
        command(f"train drawing.py:job --seed {seed}")
    zero, one, again = built(folder)
    assert zero != one
    assert one == again


def test_a_job_keeps_its_own_seed_for_training(folder):
    (folder / "seeded.py").write_text("from support import small_job\ndef job():\n    return small_job(seed=7)\n")
    assert load_job("seeded.py:job", seed=3).seed == 7


@pytest.mark.parametrize(
    "source",
    [
        "a generator without a seed",
        *(pytest.param(each, marks=pytest.mark.proof) for each in ("the system", "the clock")),
    ],
)
@pytest.mark.fault("changed configuration on resume")
def test_a_resumed_job_that_builds_other_data_is_refused_and_says_what_to_do(folder, source):
    write(folder, NEVER_THE_SAME[source])
    command("train drawing.py:job --run-dir run --max-steps 5")
    code, _, told = ran("train drawing.py:job --run-dir run --resume --epochs 2")
    assert code == 2
    assert "data: train has other values, valid has other values" in told
    assert "torch.Generator().manual_seed(0)" in told
    assert "--allow-change data" in told
    command("train drawing.py:job --run-dir run --resume --allow-change data")


def test_another_seed_is_named_and_not_the_data_that_follows_from_it(folder):
    write(folder, IN_FUNCTION["torch"])
    command("train drawing.py:job --run-dir run --max-steps 5")
    code, _, told = ran("train drawing.py:job --run-dir run --resume --seed 1")
    assert code == 2
    assert "seed: 0 → 1" in told
    assert "other values" not in told


def test_trials_of_a_job_that_builds_other_data_each_time_are_refused(folder):
    write(folder, NEVER_THE_SAME["a generator without a seed"])
    arms = Arms("drawing.py:job")
    with arms.start("plain", Plan()):
        refused = pytest.raises(Misconfigured, match="builds different data each time: train and valid")
        with refused as caught, arms.start("other", make_plan(microbatch=4)):
            pass
    assert "torch.Generator().manual_seed(0)" in caught.value.fix


def test_a_function_that_makes_the_data_draws_the_same_whatever_the_seed_of_the_job():
    drawn = list[torch.Tensor]()

    def rows() -> tuple[torch.Tensor, torch.Tensor]:
        drawn.append(torch.randn(8, 6))
        return drawn[-1], torch.zeros(8, dtype=torch.long)

    for seed in (1, 2):
        with hasten.prepare(small_job(train=rows, seed=seed)):
            pass
    assert torch.equal(*drawn)
