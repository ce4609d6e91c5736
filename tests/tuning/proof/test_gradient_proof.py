"""Proofs by gradients, asked of arms: references of the baseline for all plans, and an answer for each."""

from __future__ import annotations

from pathlib import Path

import pytest

from hasten.facts.choice import Choice, Preserves
from hasten.facts.plan import Plan, make_plan
from hasten.facts.trials import Proven, line_of, records_of
from hasten.tuning.proof.answers import Answer
from hasten.tuning.proof.job_prover import JobProver
from hasten.tuning.trials.arms import Arms

JOBS = Path(__file__).parents[1] / "jobs" / "gradient_jobs.py"


def prover(function: str, folder: Path) -> JobProver:
    return JobProver(Arms(f"{JOBS}:{function}"), folder, steps=4)


@pytest.mark.proof
def test_plans_are_proven_beside_one_set_of_references(tmp_path):
    subject = prover("tokens", tmp_path)
    first = subject.judge_gradients(make_plan(microbatch=5))
    written = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    second = subject.judge_gradients(make_plan(fused_optimizer="fused"))
    assert (first.passes, second.passes) == (True, True)
    assert sorted(path.name for path in written) == [f"step-{step}.safetensors" for step in range(4)]
    assert written == {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    choice = Choice(technique="microbatch", value=5, preserves=Preserves.ROUNDING)
    record = first.of(choice)
    assert record == Proven(
        choice=choice, passes=True, reason=first.reason, gradient_error=first.gradient_error, bound=first.bound
    )
    assert records_of([line_of(record) + "\n"]) == [record]


@pytest.mark.proof
@pytest.mark.trap(50)
def test_a_harm_that_only_the_plans_arm_has_is_caught_twice(tmp_path, monkeypatch):
    subject = prover("tokens", tmp_path)
    assert subject.judge_gradients(Plan()).passes
    monkeypatch.setenv("HASTEN_TEST_HARM", "not divided")
    found = subject.judge_gradients(make_plan(microbatch=5))
    assert not found.passes
    assert found.gradient_error is not None
    assert found.gradient_error > 1000
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"step-{step}.safetensors" for step in range(8)]


@pytest.mark.proof
def test_a_plan_that_is_right_on_other_batches_passes(tmp_path, monkeypatch):
    """As a job with kinks can be unlucky once."""
    subject = prover("tokens", tmp_path)
    assert subject.judge_gradients(Plan()).passes
    monkeypatch.setenv("HASTEN_TEST_HARM", "wrong in three steps")
    found = subject.judge_gradients(Plan())
    assert found.passes, found.reason
    assert len([*tmp_path.iterdir()]) == 8


@pytest.mark.proof
def test_an_arm_that_fails_while_proving_is_no_proof(tmp_path, monkeypatch):
    subject = prover("tokens", tmp_path)
    assert subject.judge_gradients(make_plan(precision="fp17")).reason.startswith("refused: ")
    monkeypatch.setenv("HASTEN_TEST_HARM", "killed")
    assert subject.judge_gradients(Plan()) == Answer(passes=False, reason="crashed: it was killed by SIGKILL")


@pytest.mark.proof
def test_a_job_that_cannot_be_judged_says_so_of_every_plan(tmp_path):
    found = prover("drawing", tmp_path).judge_gradients(Plan())
    assert found == Answer(passes=False, reason=found.reason, unjudged=found.unjudged)
    assert found.unjudged is not None
    assert found.reason == f"no gradient can be judged: {found.unjudged}"
    assert found.unjudged.startswith("its loss draws random numbers")


@pytest.mark.proof
@pytest.mark.trap(50)
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("function", "plan"),
    [
        ("digits", {"channels_last": True}),
        ("photos", {"cache": True}),
        ("digits", {"compile": "default"}),
        ("text", {"compile": "default", "microbatch": 5}),
    ],
)
def test_plans_of_the_examples_pass_as_a_search_asks_for_them(function, plan, tmp_path):
    found = JobProver(Arms(f"{JOBS}:{function}"), tmp_path).judge_gradients(make_plan(**plan))
    assert found.passes, found.reason
