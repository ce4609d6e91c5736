"""The Job that a training script's own names suggest."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from textwrap import indent

import pytest

from hasten.doctor.job_sketch import Sketch, TakingTurns, job_sketch
from support.cli.commands import invoked, unwrapped

REPOSITORY = Path(__file__).parents[2]
CORPUS = sorted((REPOSITORY / "tests" / "doctor" / "corpus").rglob("*.py"))
NAIVE = (REPOSITORY / "examples" / "naive.py").read_text(encoding="utf-8")
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
STEPPED = """
import torch
from torch.optim.lr_scheduler import CosineAnnealingLR, OneCycleLR, SequentialLR, StepLR
from torch.utils.data import DataLoader

loader = DataLoader(range(64), batch_size=8)
net = torch.nn.Linear(4, 2)
opt = torch.optim.SGD(net.parameters(), 0.1)
rate = {scheduler}
for epoch in range(10):
    for batch in loader:
        loss = net(batch).mean()
        loss.backward()
        torch.nn.utils.{clip}(net.parameters(), 5.0)
        opt.step()
        {each_step}
    {each_epoch}
"""
IN_A_FUNCTION = """
import torch
from torch.utils.data import DataLoader

def main(data):
    net = torch.nn.Linear(4, 2)
    opt = torch.optim.SGD(net.parameters(), 0.1)
    for batch in DataLoader(data, batch_size=8, shuffle=True):
        net(batch).mean().backward()
        opt.step()
"""
TWO_OPTIMIZERS = """
import torch

first, second = torch.nn.Linear(4, 2), torch.nn.Linear(2, 1)
one, other = torch.optim.SGD(first.parameters(), 0.1), torch.optim.SGD(second.parameters(), 0.1)
for batch in torch.utils.data.DataLoader(range(64), batch_size=8):
    second(first(batch)).mean().backward()
    one.step()
    other.step()
"""
RETURNED = """
import torch
from torch.utils.data import DataLoader

def get_loaders(size):
    train = DataLoader(range(64), batch_size=size, shuffle=True)
    valid = DataLoader(range(8), batch_size=size)
    return train, valid

def make_loader(size):
    return DataLoader(range(64), batch_size=size)

net = torch.nn.Linear(4, 2)
opt = torch.optim.SGD(net.parameters(), 0.1)
train_loader, valid_loader = get_loaders(8)
for batch in train_loader:
    net(batch).mean().backward()
    opt.step()
"""


def sketch_of(text: str) -> Sketch:
    sketch = job_sketch(text)
    assert isinstance(sketch, Sketch)
    return sketch


def stepped(scheduler: str, each_step: str = "rate.step()", each_epoch: str = "", clip: str = "clip_grad_norm_") -> str:
    return STEPPED.format(scheduler=scheduler, each_step=each_step, each_epoch=each_epoch, clip=clip)


def fields_of(text: str) -> dict[str, str]:
    tree = ast.parse("\n".join(sketch_of(text).lines).replace("…", "None"))
    calls = [each for each in ast.walk(tree) if isinstance(each, ast.Call)]
    (call,) = [each for each in calls if ast.unparse(each.func) == "hasten.Job"]
    return {str(each.arg): ast.unparse(each.value) for each in call.keywords}


def test_each_field_is_the_expression_of_the_script_with_the_defaults_of_its_options():
    assert fields_of(NAIVE) == {
        "model": "lambda: Net(32, len(train_dataset.classes))",
        "loss": "hasten.supervised(nn.CrossEntropyLoss())",
        "optimizer": "lambda params: torch.optim.Adam(params, lr=0.001)",
        "train": "train_loader",
        "valid": "valid_loader",
        "epochs": "8",
    }


def test_names_that_a_function_of_the_script_defines_are_listed():
    assert sketch_of(NAIVE).local == ("train_dataset", "train_loader", "valid_loader")


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
    ("scheduler", "field"),
    [
        (
            "OneCycleLR(opt, 0.1, total_steps=10 * len(loader), pct_start=0.2)",
            "lambda optimizer, total_steps: OneCycleLR(optimizer, 0.1, pct_start=0.2, total_steps=total_steps)",
        ),
        (
            "OneCycleLR(opt, max_lr=0.1, epochs=10, steps_per_epoch=len(loader))",
            "lambda optimizer, total_steps: OneCycleLR(optimizer, max_lr=0.1, total_steps=total_steps)",
        ),
        (
            "CosineAnnealingLR(opt, 5 * len(loader))",  # of a training of 10 epochs
            "hasten.Schedule(lambda optimizer: CosineAnnealingLR(optimizer, 5 * len(loader)), unit='step')",
        ),
    ],
)
def test_a_scheduler_of_the_length_of_the_training_gets_the_length_from_the_job(scheduler, field):
    assert fields_of(stepped(scheduler))["schedule"] == field


@pytest.mark.parametrize("scheduler", ["StepLR(opt, step_size=30)", "CosineAnnealingLR(opt, T_max=10)"])
def test_a_scheduler_that_steps_once_an_epoch_keeps_its_unit(scheduler):
    text = stepped(scheduler, each_step="", each_epoch="rate.step()")
    schedule = f"hasten.Schedule(lambda optimizer: {scheduler.replace('opt,', 'optimizer,')}, unit='epoch')"
    assert fields_of(text)["schedule"] == schedule


@pytest.mark.parametrize(
    "scheduler", ["SequentialLR(opt, [StepLR(opt, 2), StepLR(opt, 3)], [4])", "CosineAnnealingLR(opt, T_max=10)"]
)
def test_a_scheduler_whose_form_is_not_clear_is_a_comment(scheduler):
    lines = sketch_of(stepped(scheduler, each_step="advance(rate)")).lines
    assert f"        schedule=…,  # {scheduler}" in lines


@pytest.mark.parametrize(("function", "field"), [("clip_grad_norm_", "clip_norm"), ("clip_grad_value_", "clip_value")])
def test_clipping_is_taken_over_with_its_bound(function, field):
    assert fields_of(stepped("StepLR(opt, 2)", clip=function))[field] == "5.0"


def test_precision_and_accumulation_are_listed_and_not_taken_over():
    text = SCALED.replace("for x, y in", "for i, (x, y) in enumerate(").replace("shuffle=True)", "shuffle=True))")
    assert "enumerate" in text
    text = text.replace("        scaler.step(opt)", "        if (i + 1) % 4 == 0:\n            scaler.step(opt)")
    precision, accumulation = sketch_of(text).left_out
    assert precision == "autocast and GradScaler (hasten tune tries precision by itself)"
    assert accumulation == "gradient accumulation (multiply the batch_size of the job's loader by 4)"


def test_a_loader_that_a_function_makes_in_its_loop_is_the_data():
    assert fields_of(IN_A_FUNCTION)["train"] == "DataLoader(data, batch_size=8, shuffle=True)"
    assert sketch_of(IN_A_FUNCTION).local == ("data",)


def test_a_loader_that_a_function_returns_names_that_function():
    lines = sketch_of(RETURNED).lines
    assert "        train=train,  # returned by get_loaders()" in lines
    assert "        valid=valid,  # returned by get_loaders()" in lines
    assert fields_of(RETURNED.replace("_loader, valid_loader = get_loaders", "_loader = make_loader"))["train"] == (
        "make_loader(None)"
    )


def test_networks_that_take_turns_give_no_draft():
    text = (REPOSITORY / "tests" / "doctor" / "corpus" / "gan_on_faces.py").read_text(encoding="utf-8")
    assert job_sketch(text) == TakingTurns(("netD", "netG"))


def test_a_second_optimizer_of_one_loss_is_listed():
    (second,) = sketch_of(TWO_OPTIMIZERS).left_out
    assert second.startswith("the optimizer of second ")


@pytest.mark.parametrize("script", CORPUS, ids=lambda path: path.stem)
def test_every_sketch_of_public_styles_is_python(script):
    sketch = job_sketch(script.read_text(encoding="utf-8"))
    if isinstance(sketch, Sketch):
        ast.parse("\n".join(sketch.lines).replace("…", "None"))


def test_most_public_styles_give_a_draft():
    sketches = [job_sketch(script.read_text(encoding="utf-8")) for script in CORPUS]
    assert sum(isinstance(each, Sketch) for each in sketches) >= 28
    assert sum(isinstance(each, TakingTurns) for each in sketches) == 5


def test_the_command_line_answers_a_script_with_the_draft_of_its_job_and_what_to_do(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "naive.py").write_text(NAIVE, encoding="utf-8")
    code, out, shown = invoked("train", "naive.py")
    assert (code, out) == (2, "")
    draft, _, todo = shown.partition("  fix ")
    assert draft.startswith("\n  hasten needs a Job here: a function that returns ")
    assert "From the names in naive.py, this is a draft" in draft
    assert unwrapped(indent("\n".join(sketch_of(NAIVE).lines), "    ")) in draft
    assert draft.endswith("  Define inside job(), before the return: train_dataset, train_loader, valid_loader\n\n")
    assert " ".join(todo.split()) == (
        "put the draft into job.py, with the imports that it needs, and complete it: docs/start/job.md "
        "or hasten tune naive.py, which needs no job "
        "next hasten tune job.py:job"
    )
    (tmp_path / "script.py").write_text(IN_A_FUNCTION)
    shown = invoked("train", "script.py:jobs")[2]
    assert "From the names in script.py" in shown
    assert "  error     script.py:jobs: there is no function " in shown


def test_the_command_line_names_the_page_for_networks_that_take_turns(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "gan.py").write_text(TWO_OPTIMIZERS.replace("one.step()", "first(batch).mean().backward()"))
    for options in ([], ["--json"]):
        _, out, shown = invoked("train", "gan.py", *options)
        turns = "first, second have optimizers of their own: networks that take turns are no Job."
        assert turns in " ".join(shown.split())
        fix, way = "keep their loop in your own code, as docs/guides/not-a-job.md shows", "hasten tune gan.py"
        assert shown.endswith(f"  fix       {fix}\n  or        {way}, which needs no job\n")
        assert "def job()" not in shown + out


def test_the_first_steps_show_what_the_command_prints_for_their_script(tmp_path, monkeypatch):
    page = (REPOSITORY / "docs" / "start" / "job.md").read_text(encoding="utf-8")
    script, shown = (
        re.search(f"^{begin}.*?(?=^```$)", page, re.M | re.S) for begin in ("# script", r"\$ hasten train")
    )
    assert script is not None
    assert shown is not None
    monkeypatch.chdir(tmp_path)
    (tmp_path / "script.py").write_text(script[0], encoding="utf-8")
    _, out, err = invoked("train", "script.py")
    assert unwrapped(shown[0]).split() == ["$", "hasten", "train", "script.py", *out.split(), *err.split()]
