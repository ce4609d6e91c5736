"""Plans on disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from hasten.checkpoint.plans import write_plan
from hasten.errors import PlanError, StorageFailed
from hasten.facts.plan import make_plan
from hasten.facts.plan_file import read_plan


def test_a_plan_is_read_as_it_was_written(tmp_path: Path):
    plan = make_plan(precision="bf16", compile=(True, {"mode": "default"}))
    write_plan(plan, tmp_path / "plan.toml")
    assert read_plan(tmp_path / "plan.toml") == plan


def test_a_plan_that_cannot_be_written_leaves_the_one_before_it(tmp_path: Path):
    path = tmp_path / "plan.toml"
    write_plan(make_plan(precision="bf16"), path)
    with pytest.raises(PlanError):
        write_plan(make_plan(precision=float("nan")), path)
    with pytest.raises(StorageFailed):
        write_plan(make_plan(), tmp_path / "missing" / "plan.toml")
    assert read_plan(path) == make_plan(precision="bf16")
