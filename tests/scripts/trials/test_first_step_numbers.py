"""The first step of a script is judged before its update has moved a weight."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from hasten.facts.plan import Plan
from hasten.scripts.running.program import Program
from hasten.scripts.trials.script_arms import observe, script_arms
from hasten.tuning.trials.other_programs import OtherPrograms

SCRIPT = """\
import torch
from torch import nn

model = nn.Linear(2, 1, bias=False){half}
nn.init.constant_(model.weight, {weight})
optimizer = torch.optim.{optimizer}
inputs = torch.full((1, 2), {inputs}, dtype=model.weight.dtype)


def closure():
    optimizer.zero_grad()
    loss = model(inputs).square().sum() / 2
    loss.backward()
    return loss


for step in range(8):
    optimizer.step(closure)
"""
LBFGS = {"half": "", "weight": 1.0, "inputs": 1.0, "optimizer": "LBFGS(model.parameters(), lr=0.1)"}
FLOAT16 = {"half": ".half()", "weight": 0.125, "inputs": 480.0, "optimizer": "SGD(model.parameters(), lr=0.0)"}


@pytest.mark.parametrize(
    ("filled", "loss", "gradient"),
    [(LBFGS, 2.0, math.sqrt(8)), pytest.param(FLOAT16, 7200.0, 57600 * math.sqrt(2), marks=pytest.mark.proof)],
)
def test_its_loss_and_gradient_are_those_before_any_update(filled, loss, gradient, tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    program = Program(name="train.py")
    Path(program.name).write_text(SCRIPT.format(**filled))
    with script_arms(program, observe(program), tmp_path, OtherPrograms(None)).start("plain", Plan()) as arm:
        found = arm.ask("train", seed=0, steps=1, metric=None, seconds=60.0)["first_step"]
    assert found == {"loss": loss, "norm of the gradient": pytest.approx(gradient)}
