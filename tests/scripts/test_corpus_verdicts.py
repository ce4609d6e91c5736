"""What a search's answer counts as."""

from __future__ import annotations

from dataclasses import replace

import pytest
from bench.script_corpus import (
    ACCEPTED,
    FAILED,
    NOT_ACCEPTED,
    NOTHING,
    REFUSED,
    Answered,
    state,
    summary,
    targets_of,
    verdict_of,
)

PLAN = {"choices": [{"technique": "precision", "value": "bf16"}], "sentence": "Not accepted: it fails"}
ANSWERED = Answered(
    script="plain/first_net.py",
    verdict=NOTHING,
    why="",
    choices=[],
    speedup=None,
    seconds=20.0,
    needs_steps=False,
    unchanged=True,
)


@pytest.mark.parametrize(
    ("code", "answer", "has_patch", "verdict"),
    [
        (0, PLAN, True, (ACCEPTED, "")),
        (0, PLAN, False, (NOT_ACCEPTED, "Not accepted: it fails")),
        (0, {"choices": []}, False, (NOTHING, "")),
        (2, {"error": "trains nothing"}, False, (REFUSED, "trains nothing")),
        (10, {"error": "ValueError: no"}, False, (FAILED, "ValueError: no")),
        (None, {}, False, (FAILED, "it took longer than 240 s")),
    ],
)
def test_an_answer_has_one_verdict(code, answer, has_patch, verdict):
    assert verdict_of(code, answer, has_patch=has_patch) == verdict


def test_a_plan_that_is_not_accepted_and_a_changed_folder_miss_their_targets():
    found = [ANSWERED] * 9 + [replace(ANSWERED, verdict=ACCEPTED)]
    assert [each.outcome for each in targets_of(found)] == ["met"] * 3
    found = [ANSWERED] * 8 + [replace(ANSWERED, verdict=NOT_ACCEPTED, unchanged=False), ANSWERED]
    assert [each.outcome for each in targets_of(found)] == ["met", "missed", "missed"]
    assert summary(found) == (
        "9 of 10: a plan or nothing helps (9 nothing helps, 1 a plan, not accepted); folders changed: 1"
    )


def test_the_state_of_a_folder_has_all_that_is_in_it(tmp_path):
    (tmp_path / "logs").mkdir()
    before = state(tmp_path)
    (tmp_path / "logs" / "empty").touch()
    assert [*before] == ["logs"]
    assert [*state(tmp_path)] == ["logs", "logs/empty"]
