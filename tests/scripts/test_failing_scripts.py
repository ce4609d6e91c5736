"""A script that cannot be tuned is answered in a sentence, with what to do and the exit code of the cause."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from hasten.cli.tuning.script_words import behind_the_script
from hasten.scripts.edits.patch import PatchedFile, patch_of
from hasten.scripts.trials import script_arms
from support.cli.commands import invoked

TRAINS = """
    import argparse
    import torch

    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=6)
    args = parser.parse_args()
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(args.steps):
        model(torch.ones(4, 3)).sum().backward()
        optimizer.step()
"""
JOBS = """
    import hasten

    def job():
        return hasten.Job(model=None)
"""
ONLY_FORWARD = """
    import torch

    class Net(torch.nn.Linear):
        def forward(self, x):
            return x @ self.weight.T

    model = Net(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(6):
        model.forward(torch.ones(4, 3)).sum().backward()
        optimizer.step()
"""
STYLE = """
    import torch

    frozen = torch.nn.Linear(3, 1).requires_grad_(False)
    image = torch.ones(4, 3, requires_grad=True)
    optimizer = torch.optim.Adam([image], lr=0.01)
    for step in range(6):
        frozen(image).sum().backward()
        optimizer.step()
"""
ENDLESS = """
    import torch

    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    while True:
        model(torch.ones(4, 3)).sum().backward()
        optimizer.step()
"""
HOGWILD = """
    import torch
    import torch.multiprocessing as mp

    def step(model):
        model(torch.ones(4, 3)).sum().backward()

    class Trainer:
        def train(self, model):
            step(model)

    def train(model):
        Trainer().train(model)

    if __name__ == "__main__":
        processes = [mp.Process(target=train, args=(torch.nn.Linear(3, 1),)) for rank in range(2)]
        for each in processes:
            each.start()
        for each in processes:
            each.join()
"""
HANGS = "import threading; threading.Event().wait()"


@pytest.mark.parametrize(
    ("source", "words", "code", "says"),
    [
        (TRAINS, "--seconds 30", 2, "options of hasten stand before the script: hasten tune --seconds 30 train.py"),
        (TRAINS, "--step many", 2, "argument --steps: invalid int value: 'many'"),
        ("import sys; sys.exit('no data')", "", 2, "error train.py: ended with exit code 1: no data fix see why"),
        (JOBS, "", 2, "it defines a job, which is tuned by its name: hasten tune train.py:job"),
        ("print('x' * 10**6)", "", 2, "error trains nothing: no optimizer of torch made a step"),
        (ONLY_FORWARD, "", 2, "call the model itself, as in model(images)"),
        (TRAINS.replace("default=6", "default=1"), "", 2, "ended after one optimizer step, so no steps can be timed"),
        (STYLE, "", 2, "trains tensors that are parameters of no named module"),
        pytest.param(
            HOGWILD,
            "",
            2,
            "trains by train() in processes that it starts itself, which are not timed",
            marks=pytest.mark.proof,
        ),
        ("input('how many? ')", "", 10, "it asks for input(), and nobody answers in a trial"),
        ("raise ValueError('no')", "", 10, "error train.py:1, in <module>: ValueError: no"),
        ("def broken(:", "", 10, "train.py:1: SyntaxError"),
        (HANGS, "", 14, "took too few steps within 3 s"),
    ],
)
def test_a_script_that_cannot_be_tuned(tmp_path, monkeypatch, source, words, code, says):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(script_arms, "LONGEST_SECONDS", 3.0 if source == HANGS else 120.0)
    Path("train.py").write_text(dedent(source))
    found, _, shown = invoked("tune", "train.py", *words.split())
    assert says in " ".join(shown.split())
    assert found == code
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]


def test_a_patch_that_is_applied_is_not_overwritten_by_another_search(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    file = PatchedFile(path=tmp_path / "train.py", before=b"print(1)\n", after=b"print(2)\n")
    file.path.write_bytes(file.after)
    Path("plan.patch").write_bytes(patch := patch_of([file], tmp_path, Path("plan.patch"), b"", file.path))
    found, _, shown = invoked("tune", "train.py")
    assert "plan.patch: is applied, and a new search would overwrite the file that can undo it" in shown
    assert (found, Path("plan.patch").read_bytes()) == (2, patch)


@pytest.mark.parametrize("is_edited", [False, True])
def test_a_patch_of_sources_that_have_changed_since_is_kept_by_a_new_search(tmp_path, monkeypatch, is_edited):
    monkeypatch.chdir(tmp_path)
    source = dedent(ENDLESS).encode()
    file = PatchedFile(path=tmp_path / "train.py", before=source, after=source + b"# patched\n")
    file.path.write_bytes(file.after + b"# edited since\n" if is_edited else source)
    Path("plan.patch").write_bytes(patch := patch_of([file], tmp_path, Path("plan.patch"), b"", Path("train.py")))
    found, out, shown = invoked("tune", "train.py")
    assert (found, "its length is not known" in shown) == (2, True)
    kept = "plan.patch.1: the patch of an earlier search, whose files have changed since"
    assert (kept in " ".join(out.split())) == is_edited
    assert Path("plan.patch.1" if is_edited else "plan.patch").read_bytes() == patch
    assert len([*tmp_path.iterdir()]) == 2


def test_options_of_hasten_behind_the_script_are_found():
    words = ["--lr", "1", "--seconds", "30", "--busy", "-o=x.toml", "--epochs", "3"]
    assert behind_the_script(words) == (["--seconds", "30", "--busy", "-o=x.toml"], ["--lr", "1", "--epochs", "3"])
