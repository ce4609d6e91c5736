"""The Job that a training script's own names suggest."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from hasten.doctor.job_sketch import job_sketch

REPOSITORY = Path(__file__).parents[2]
SCALED = """
import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.data import DataLoader

net = nn.Linear(4, 2).cuda()
opt = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
scaler = torch.amp.GradScaler()
test = DataLoader(range(8))
for epoch in range(1, 11):
    for x, y in DataLoader(range(64), batch_size=8, shuffle=True):
        with torch.autocast("cuda"):
            loss = F.cross_entropy(net(x), y)
        scaler.scale(loss).backward()
        scaler.step(opt)
"""


def fields_of(text: str) -> dict[str, str]:
    sketch = job_sketch(text)
    assert sketch is not None
    tree = ast.parse("\n".join(sketch.lines).replace("…", "None"))
    calls = [each for each in ast.walk(tree) if isinstance(each, ast.Call)]
    (call,) = [each for each in calls if ast.unparse(each.func) == "hasten.Job"]
    return {str(each.arg): ast.unparse(each.value) for each in call.keywords}


def test_each_field_is_the_expression_of_the_script():
    assert fields_of((REPOSITORY / "examples" / "naive.py").read_text(encoding="utf-8")) == {
        "model": "lambda: Net(args.width, len(train_dataset.classes))",
        "loss": "hasten.supervised(nn.CrossEntropyLoss())",
        "optimizer": "lambda params: torch.optim.Adam(params, lr=args.lr)",
        "train": "train_loader",
        "valid": "valid_loader",
        "epochs": "args.epochs",
    }


def test_names_that_a_function_of_the_script_defines_are_listed():
    sketch = job_sketch((REPOSITORY / "examples" / "naive.py").read_text(encoding="utf-8"))
    assert sketch is not None
    assert sketch.local == ("args", "train_dataset", "train_loader", "valid_loader")


def test_a_scaled_loss_and_a_loader_without_a_name_are_read():
    assert fields_of(SCALED) == {
        "model": "lambda: nn.Linear(4, 2)",
        "loss": "hasten.supervised(F.cross_entropy)",
        "optimizer": "lambda params: torch.optim.SGD(params, 0.1, momentum=0.9)",
        "train": "DataLoader(range(64), batch_size=8, shuffle=True)",
        "valid": "test",
        "epochs": "10",
    }


@pytest.mark.parametrize(
    "text", ["print('no training')", "def broken(:", "import hasten\nloss.backward()\nhasten.Job()"]
)
def test_a_file_that_trains_nothing_or_has_a_job_gives_no_sketch(text):
    assert job_sketch(text) is None


@pytest.mark.parametrize(
    "script", sorted((REPOSITORY / "tests" / "doctor" / "corpus").rglob("*.py")), ids=lambda path: path.stem
)
def test_every_sketch_of_public_styles_is_python(script):
    sketch = job_sketch(script.read_text(encoding="utf-8"))
    if sketch is not None:
        ast.parse("\n".join(sketch.lines).replace("…", "None"))
