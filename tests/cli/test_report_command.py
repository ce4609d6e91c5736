"""hasten report: what it says, what it writes, and how it ends."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from hasten.facts.scripts.script_places import ScriptPlaces
from hasten.facts.trials import Surveyed
from hasten.scripts.edits.patch import PatchedFile, apply, patch_of
from support.cli.commands import ran
from support.report.samples import sample_plan, sample_records, write_plan, write_run


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """A folder with a plan, its trials and a run, and the present one while the test runs."""
    write_plan(tmp_path)
    write_run(tmp_path / "runs" / "job-1")
    return tmp_path


def test_a_plan_gets_its_page_beside_it_and_the_command_to_train_by_it(here: Path):
    code, shown, _ = ran("report plan.toml")
    assert code == 0
    header, _, verdict, *_ = shown.splitlines()
    assert header == "Writing a page about plan.toml"
    assert verdict == "  verdict   3.14× faster: 6 min 52 s → 2 min 11 s"
    assert "  report    report.html\n" in shown
    assert shown.strip().splitlines()[-1].split(None, 1) == [
        "next",
        "hasten train examples/digits.py:job --plan plan.toml",
    ]
    assert (here / "report.html").read_text(encoding="utf-8").startswith("<!doctype html>")


def test_the_next_command_of_a_script_needs_no_plan_once_its_patch_is_applied(here: Path):
    places = ScriptPlaces(script="train.py", sources={"train.py": "0"}, device="cpu", optimizers=())
    job = "train.py --epochs 3"
    records = [replace(each, job=job) if isinstance(each, Surveyed) else each for each in sample_records()]
    write_plan(here, replace(sample_plan(), script=places), records)
    (here / "train.py").write_text("print(1)\n")
    file = PatchedFile(path=here / "train.py", before=b"print(1)\n", after=b"print(2)\n")
    plan = (here / "plan.toml").read_bytes()
    (here / "plan.patch").write_bytes(patch_of([file], here, here / "plan.patch", plan, file.path))
    assert "hasten run --plan plan.toml train.py --epochs 3\n" in ran("report plan.toml")[1]
    apply([file])
    shown = ran("report plan.toml")[1]
    assert shown.strip().splitlines()[-1].split(None, 1) == ["next", "python train.py --epochs 3"]
    assert "hasten run --plan" not in (here / "report.html").read_text(encoding="utf-8")
    (here / "train.py").unlink()
    assert "hasten run --plan plan.toml train.py --epochs 3\n" in ran("report plan.toml")[1]


def test_the_next_command_of_a_script_that_nothing_makes_faster_is_pythons_as_the_search_said(here: Path):
    places = ScriptPlaces(script="train.py", sources={"train.py": "0"}, device="cpu", optimizers=())
    job = "train.py --epochs 3"
    records = [replace(each, job=job) if isinstance(each, Surveyed) else each for each in sample_records()]
    write_plan(here, replace(sample_plan(), choices=(), script=places), records)
    shown = ran("report plan.toml")[1]
    assert shown.strip().splitlines()[-1].split(None, 1) == ["next", "python train.py --epochs 3"]


def test_a_run_gets_its_page_into_its_folder(here: Path):
    code, shown, _ = ran("report runs/job-1")
    assert code == 0
    assert shown.strip().splitlines()[-1].split(None, 1) == ["next", "hasten tune examples/digits.py:job"]
    assert "Trained 600" in (here / "runs" / "job-1" / "report.html").read_text(encoding="utf-8").replace("\xa0", " ")


def test_the_page_can_go_elsewhere_and_is_written_anew(here: Path):
    (here / "page.html").write_text("old")
    assert ran("report plan.toml -o page.html")[0] == 0
    assert "old" not in (here / "page.html").read_text(encoding="utf-8")[:3]
    assert not (here / "report.html").exists()


def test_a_page_never_takes_the_place_of_a_plan(here: Path):
    before = (here / "plan.toml").read_bytes()
    code, _, error = ran("report plan.toml -o plan.toml")
    assert code == 2
    assert "hasten report plan.toml -o plan.html" in error
    assert (here / "plan.toml").read_bytes() == before


@pytest.mark.parametrize(
    ("line", "code", "says"),
    [
        ("report nothing.toml", 2, "there is no such file or folder"),
        ("report runs/none", 2, "or the folder of a run, such as runs/job-1"),
        ("report runs", 2, "is not a run folder"),
        ("report plan.toml -o missing/report.html", 15, "create the folder first"),
        ("report plan.trials.jsonl", 2, "is not valid TOML"),
    ],
)
def test_what_cannot_be_reported_is_said_and_nothing_is_written(here: Path, line: str, code: int, says: str):
    ended, _, error = ran(line)
    assert ended == code
    assert says in error
    assert not list(here.rglob("*.html"))


def test_reading_a_long_log_shows_its_progress(here: Path, monkeypatch: pytest.MonkeyPatch):
    for seconds in ("PATIENCE_SECONDS", "REFRESH_SECONDS"):
        monkeypatch.setattr(f"hasten.report.terminal.progress_bar.{seconds}", 0.0)
    assert re.search(r"  writing   20 %, .* left\n  writing   100 %\n", ran("report runs/job-1")[2])
