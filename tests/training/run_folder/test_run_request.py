"""How a run was asked for: what its folder remembers, and how little of a file is believed."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import hasten
from hasten.errors import Damaged
from hasten.training.run_folder.folder_names import ASKED
from hasten.training.run_folder.run_request import RunRequest, asked_in
from hasten.training.setup.job_options import options_of
from support.checkpoint.forger import with_seal
from support.training.saved_runs import every, job, notices, resumed, trained

ODD = RunRequest(
    name="jobs/a.py:job",
    changes={"epochs": 3, "seed": 0, "device": "cpu"},
    saving=hasten.Saving(every_steps=5, every_seconds=0.5, keep_last=7, keep_best=False, keep_every=9, grace_seconds=3),
    tensorboard=True,
    job_options=options_of(["lr=0.1", "name=a b"], ["--quick", "-n", "3"]),
    receivers=("jobs/send.py:to_wandb", "b.py:f"),
)


@pytest.mark.parametrize(
    "asked", [RunRequest(), ODD, RunRequest(name="ä \ud800\n")], ids=["plain", "odd", "no Unicode"]
)
def test_what_is_written_is_read_again(tmp_path: Path, asked: RunRequest):
    asked.write(tmp_path)
    assert asked_in(tmp_path) == asked


def test_a_folder_that_says_nothing_is_none(tmp_path: Path):
    assert asked_in(tmp_path) is None


def test_every_bit_of_the_file_is_under_its_seal(tmp_path: Path):
    ODD.write(tmp_path)
    content = (tmp_path / ASKED).read_bytes()
    for place in range(len(content)):
        changed = bytearray(content)
        changed[place] ^= 1 << place % 8
        (tmp_path / ASKED).write_bytes(changed)
        with pytest.raises(Damaged):
            asked_in(tmp_path)


def forged(field: str, value: Any, within: str | None = None) -> Callable[[dict[str, Any]], None]:
    def change(told: dict[str, Any]) -> None:
        (told if within is None else told[within])[field] = value

    return change


FORGED = {
    "a receiver that is no text": forged("receivers", [1]),
    "a receiver with a null byte": forged("receivers", ["\0.py:f"]),
    "a schema of another hasten": forged("schema", 2),
    "one field more": forged("more", 1),
    "a name that is none": forged("name", 5),
    "another field of the job": forged("train", "x", "changes"),
    "no epoch": forged("epochs", 0, "changes"),
    "epochs in words": forged("epochs", "3", "changes"),
    "a huge number": forged("seed", 1 << 64, "changes"),
    "saving that is none": forged("saving", None),
    "too few that stay": forged("keep_last", 1, "saving"),
    "half a step": forged("keep_every", 1.5, "saving"),
    "a grace of no number": forged("grace_seconds", float("nan"), "saving"),
}


@pytest.mark.parametrize("name", FORGED)
def test_what_was_never_written_so_is_not_believed_whatever_its_seal(tmp_path: Path, name: str):
    ODD.write(tmp_path)
    told = json.loads((tmp_path / ASKED).read_bytes())
    del told["seal"]
    assert with_seal(told) == (tmp_path / ASKED).read_bytes()
    FORGED[name](told)
    (tmp_path / ASKED).write_bytes(with_seal(told))
    with pytest.raises(Damaged, match=r"is invalid|was changed"):
        asked_in(tmp_path)


def test_a_run_of_python_goes_on_with_the_saving_that_it_began_with(tmp_path: Path):
    saving = every(2, keep_every=4)
    trained(tmp_path / "run", job(max_steps=6), saving=saving, name="mine")
    found = resumed(tmp_path / "run", job(max_steps=6))
    assert asked_in(tmp_path / "run") == RunRequest(name="mine", saving=saving)
    assert notices(found) == []
    other = every(3)
    resumed(tmp_path / "run", job(max_steps=6), saving=other, name="other")
    assert asked_in(tmp_path / "run") == RunRequest(name="other", saving=other)


def test_what_the_command_line_replaced_stays_remembered_where_the_job_has_it_too(tmp_path: Path):
    trained(tmp_path / "run", job(max_steps=6))
    replace(ODD, changes={"max_steps": 6, "seed": 3}).write(tmp_path / "run")
    resumed(tmp_path / "run", job(max_steps=6))
    asked = asked_in(tmp_path / "run")
    assert asked is not None
    assert (asked.changes, asked.name, asked.tensorboard) == ({"max_steps": 6}, ODD.name, True)
