"""hasten checkpoints and hasten export: what they say, what they write, and how they end."""

from __future__ import annotations

import json
import re
import shutil
import time
from dataclasses import replace
from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch import nn

import hasten
from hasten.checkpoint.store import Store
from support import small_job
from support.checkpoint.forger import as_of_version
from support.cli.commands import ran
from support.training.complete_runs import checkpoints_of, complete_run, flip, sealed_again

TENSORS = "tensors.safetensors"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return complete_run(tmp_path_factory.mktemp("made") / "job-1")


@pytest.fixture
def here(made: Path, tmp_path: Path) -> Path:
    """A folder with a run in runs/job-1, and the present one while the test runs."""
    shutil.copytree(made, tmp_path / "runs" / "job-1")
    return tmp_path / "runs" / "job-1"


def rows(shown: str) -> list[str]:
    return [line for line in shown.splitlines() if re.match(r"  (→ |  ) *\d", line)]


# ── hasten checkpoints ──────────────────────────────────────────────────────────────────────────────────────────────


def test_checkpoints_are_listed_newest_first_and_the_one_that_is_resumed_from_is_marked(here: Path):
    code, shown, error = ran("checkpoints runs/job-1")
    assert (code, error) == (0, "")
    found = rows(shown)
    assert [row.split()[:2] for row in found] == [["→", "10"], ["8", "2"], ["6", "2"]]
    assert re.search(r" 10 +2 +\d+ s +1\d\.\d KiB  as planned +verified$", found[0])
    assert "  verdict   Resumes at step 10, from runs/job-1/checkpoints/step-10\n" in shown


@pytest.mark.fault("clock jump")
def test_an_age_that_cannot_be_right_is_not_shown(here: Path):
    path = checkpoints_of(here)[0].path
    sealed_again(path, lambda manifest: replace(manifest, saved_at=time.time() + 3600))
    assert " – " in rows(ran("checkpoints runs/job-1")[1])[0]


HARMS = {"flipped": "was changed after it was written", "gone": "No such file or directory"}


@pytest.mark.parametrize(("file", "harm"), [("manifest.json", "flipped"), ("state.json", "gone"), (TENSORS, "flipped")])
def test_a_damaged_checkpoint_says_what_is_wrong_and_an_older_one_is_marked(here: Path, file: str, harm: str):
    path = checkpoints_of(here)[0].path / file
    content = path.read_bytes()
    path.unlink()
    if harm == "flipped":
        path.write_bytes(content)
        flip(path)
    code, shown, _ = ran("checkpoints runs/job-1")
    assert code == 0
    broken, marked, _ = rows(shown)
    assert broken.startswith("    10")
    assert broken.endswith(" damaged")
    note = " ".join(shown.partition("  note ")[2].partition("  next ")[0].split())
    assert note.startswith(f"step 10: {file} ")
    assert file == "manifest.json" or re.search(HARMS[harm], note)  # whose own seal has words of its own
    assert marked.startswith("  →  8")
    loaded = Store(here / "checkpoints").newest(lambda checkpoint, error: None)
    assert loaded is not None
    assert loaded.manifest.step == 8  # as a resumed run would choose


def test_checkpoints_of_another_version_are_not_called_damaged(here: Path):
    for each in checkpoints_of(here):
        as_of_version(each.path, 1, None)
    code, shown, _ = ran("checkpoints runs/job-1")
    assert code == 0
    assert all(row.endswith(" of another version") for row in rows(shown))
    assert "  verdict   Never resumes: all checkpoints are of another version\n" in shown
    assert "saved by hasten 0.1.0" in shown


def test_the_list_as_json_is_one_object_with_the_truth(here: Path):
    flip(here / "checkpoints" / "step-8" / TENSORS)
    code, shown, _ = ran("checkpoints runs/job-1 --json")
    answer = json.loads(shown)
    assert code == 0
    assert answer["resumes_from"] == "runs/job-1/checkpoints/step-10"
    assert answer["next"] == "hasten train jobs_of_tests.py:job --resume --run-dir runs/job-1"
    newest, damaged, _ = answer["checkpoints"]
    manifest = checkpoints_of(here)[0].manifest()
    about = ("runs/job-1/checkpoints/step-10", 10, 1, 1, "as planned", False)
    assert tuple(newest[name] for name in ("path", "step", "attempt", "epoch", "reason", "best")) == about
    assert (newest["verified"], newest["damage"]) == (True, None)
    assert (newest["saved_at"], newest["bytes"]) == (manifest.saved_at, manifest.bytes)
    assert 0 <= newest["age_seconds"] < 3600
    assert not damaged["verified"]
    assert damaged["damage"] == f"{TENSORS} was changed after it was written: its digest differs"


def test_a_run_without_a_checkpoint_begins_anew_and_says_so(here: Path):
    shutil.rmtree(here / "checkpoints")
    code, shown, _ = ran("checkpoints runs/job-1")
    assert code == 0
    assert "  verdict   Resumes from the beginning\n  why       there is no checkpoint yet\n" in shown
    assert json.loads(ran("checkpoints runs/job-1 --json")[1])["resumes_from"] is None


def test_a_run_without_a_whole_checkpoint_is_not_said_to_resume(here: Path):
    for each in checkpoints_of(here):
        flip(each.path / TENSORS)
    _, shown, _ = ran("checkpoints runs/job-1")
    assert "  verdict   Never resumes: all checkpoints are damaged\n  why       start a new run\n" in shown
    anew = "hasten train jobs_of_tests.py:job"
    assert shown.splitlines()[-1].strip() == f"next      {anew}"
    assert json.loads(ran("checkpoints runs/job-1 --json")[1])["next"] == anew


@pytest.mark.parametrize(
    ("command", "says"),
    [("checkpoints runs", "is not a run folder"), ("export nowhere -o model.safetensors", "no such folder")],
)
def test_a_folder_that_is_no_run_is_refused(here: Path, command: str, says: str):
    code, shown, error = ran(command)
    assert (code, "verdict" in shown) == (2, False)
    assert says in error
    assert not Path("model.safetensors").exists()


# ── hasten export ───────────────────────────────────────────────────────────────────────────────────────────────────


class Tied(nn.Module):
    """Two layers with one weight, as a language model has."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 6), nn.Linear(6, 6)
        self.last.weight = self.first.weight

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return self.last(self.first(rows))


def convolution() -> nn.Module:
    layers = nn.Unflatten(1, (2, 3, 1)), nn.Conv2d(2, 4, (2, 1)), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(8, 3)
    return nn.Sequential(*layers)


JOBS = {
    "the best evaluation": (None, {"valid": small_job().train, "stop": hasten.EarlyStopping("loss", patience=9)}),
    "tied weights": (None, {"model": Tied}),
    "biases that a plan removed": (hasten.make_plan(conv_bn_bias=True), {"model": convolution}),
}


@pytest.mark.parametrize("name", JOBS)
def test_the_weights_of_a_complete_run_are_those_that_it_left(tmp_path: Path, name: str):
    plan, changes = JOBS[name]
    run = complete_run(tmp_path / "run", plan, **changes)
    assert ran("export run -o model.safetensors")[0] == 0
    assert Path("model.safetensors").read_bytes() == (run / "model.safetensors").read_bytes()


def test_what_was_written_is_told_and_can_be_loaded_as_it_says(here: Path):
    code, shown, _ = ran("export runs/job-1 -o out.safetensors")
    assert code == 0
    assert "  verdict   Exported step 10 to out.safetensors\n" in shown
    size = f"{Path('out.safetensors').stat().st_size} B"
    assert f"  why       2 tensors, {size}, from runs/job-1/checkpoints/step-10\n" in shown
    assert shown.splitlines()[-1].strip() == "next      hasten train jobs_of_tests.py:job --weights out.safetensors"
    model = nn.Linear(6, 3)
    exec(re.search(r"^  use +(.*)$", shown, re.MULTILINE)[1], {"model": model, "hasten": hasten})  # type: ignore[index]
    written = safetensors.torch.load_file(here / "model.safetensors")
    assert all(torch.equal(each, written[name]) for name, each in model.state_dict().items())


@pytest.mark.parametrize(
    ("line", "code", "says", "fix"),
    [
        ("-o model.pt", 2, "weights are written as safetensors only", "-o model.safetensors"),
        ("-o runs/job-1/model.safetensors", 2, "exists already", "choose another name"),
        ("-o new.safetensors --step 7", 2, "there is no checkpoint of step 7", "hasten checkpoints"),
        ("-o new.safetensors --step 8", 15, "step-8 is not used: tensors.safetensors was", "hasten checkpoints"),
    ],
)
def test_what_cannot_be_exported_is_said_and_nothing_is_written(here: Path, line: str, code: int, says: str, fix: str):
    flip(here / "checkpoints" / "step-8" / TENSORS)
    ended, shown, error = ran(f"export runs/job-1 {line}")
    assert (ended, "verdict" in shown) == (code, False)
    assert says in error
    assert fix in error
    assert not list(here.parent.parent.glob("*.safetensors"))


def test_reading_a_long_checkpoint_shows_its_progress(here: Path, monkeypatch: pytest.MonkeyPatch):
    for seconds in ("PATIENCE_SECONDS", "REFRESH_SECONDS"):
        monkeypatch.setattr(f"hasten.report.terminal.progress_bar.{seconds}", 0.0)
    assert "  reading   100 %\n" in ran("export runs/job-1 -o model.safetensors")[2]
