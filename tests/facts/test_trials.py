"""The file of trials: which plan it belongs to, and that any text can be in it."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import pytest

from hasten.errors import StorageFailed
from hasten.facts.choice import Choice
from hasten.facts.trials import Tried, line_of, read_trials, records_of, trials_beside

NAMES = ["plan.toml", "plan", "plan.v2", "plan.v2.toml", "plan.v3", "plan.toml.toml", "plan.TOML", ".toml", "toml"]


def test_the_trials_of_a_plan_have_its_name():
    assert trials_beside(Path("runs/plan.toml")) == Path("runs/plan.trials.jsonl")
    assert trials_beside(Path("plan.v2")) == Path("plan.v2-trials.jsonl")


@pytest.mark.parametrize(("one", "other"), [*combinations(NAMES, 2)])
def test_no_two_plans_share_their_trials(one: str, other: str):
    assert trials_beside(Path(one)) != trials_beside(Path(other))


def test_a_reason_that_is_no_unicode_comes_back_from_the_file(tmp_path: Path):
    tried = Tried(
        choice=Choice(technique="cache", value=True), on=(), verdict="failed", reason="\udcff\x00\x1b\u2028\n"
    )
    (tmp_path / "plan.trials.jsonl").write_bytes(line_of(tried).encode() + b"\n")
    assert read_trials(tmp_path / "plan.trials.jsonl") == [tried] == records_of([line_of(tried)])


def test_a_file_that_cannot_be_read_is_told_by_its_name(tmp_path: Path):
    with pytest.raises(StorageFailed, match="it is a folder, not a file") as told:
        read_trials(tmp_path)
    assert told.value.where == str(tmp_path)


def test_records_that_only_earlier_versions_wrote_are_skipped():
    tried = Tried(choice=Choice(technique="cache", value=True), on=(), verdict="failed", reason="")
    assert records_of(['{"record": "Memory", "arm": "plain", "bytes": [1]}', line_of(tried)]) == [tried]
