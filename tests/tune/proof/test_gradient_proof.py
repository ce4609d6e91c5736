"""Proofs asked of arms: one look at the plain job for all plans, a verdict for each, and no failure but its own."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hasten.facts.choice import Choice, Preserves
from hasten.facts.plan import Plan, make_plan
from hasten.facts.trials import Proven, line_of, records_of
from hasten.tune.proof.gradient_proof import GradientProof, GradientProver
from hasten.tune.trials.arms import Arms
from hasten.tune.trials.trial_outcome import Fate

JOBS = Path(__file__).parents[1] / "jobs" / "gradient_jobs.py"


def prover(function: str, folder: Path) -> GradientProver:
    return GradientProver(Arms(f"{JOBS}:{function}"), folder, steps=4)


def test_plans_are_proven_beside_one_look_at_the_plain_job(tmp_path):
    prove = prover("tokens", tmp_path)
    first = prove.prove(make_plan(microbatch=5))
    written = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    second = prove.prove(make_plan(fused_optimizer="fused"))
    assert (first.passes, second.passes, first.fate, second.fate) == (True, True, None, None)
    assert sorted(path.name for path in written) == [f"step-{step}.safetensors" for step in range(4)]
    assert written == {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    choice = Choice(technique="microbatch", value=5, preserves=Preserves.ROUNDING)
    record = first.of(choice)
    assert record == Proven(
        choice=choice, passes=True, reason=first.reason, gradient_error=first.error, bound=first.bound
    )
    assert records_of([line_of(record) + "\n"]) == [record]


def test_what_leaves_all_gradients_as_they_are_needs_no_reference(tmp_path):
    found = prover("tokens", tmp_path).prove(make_plan(fused_optimizer="fused"))
    assert found.passes
    assert found.reason.startswith("the gradients of 3 steps are equal to the last bit, and the update's error is ")
    assert found.error is not None
    assert 0 <= found.error <= 2
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"same-{step}.safetensors" for step in range(3)]


@pytest.mark.trap(50)
def test_where_a_gradient_differs_in_a_bit_nothing_is_the_same(tmp_path, monkeypatch):
    prove, plan = prover("tokens", tmp_path), make_plan(fused_optimizer="fused")
    assert prove._proven_same(plan) is not None
    monkeypatch.setenv("HASTEN_TEST_HARM", "wrong in three steps")
    assert prove._proven_same(plan) is None


@pytest.mark.trap(50)
def test_a_harm_that_only_the_plans_arm_has_is_caught_twice(tmp_path, monkeypatch):
    prove = prover("tokens", tmp_path)
    assert prove.prove(Plan()).same_bits
    monkeypatch.setenv("HASTEN_TEST_HARM", "not divided")
    found = prove.prove(make_plan(microbatch=5))
    assert (found.passes, found.fate) == (False, None)
    assert found.error is not None
    assert found.error > 1000
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"step-{step}.safetensors" for step in range(8)]


def test_a_plan_that_is_right_on_other_batches_passes(tmp_path, monkeypatch):
    """As a job with kinks can be unlucky once."""
    prove = prover("tokens", tmp_path)
    assert prove.prove(Plan()).same_bits
    monkeypatch.setenv("HASTEN_TEST_HARM", "wrong in three steps")
    found = prove.prove(Plan())
    assert found.passes, found.reason
    assert len([*tmp_path.iterdir()]) == 8


def test_who_claims_the_same_bits_must_have_them(tmp_path):
    prove = prover("tokens", tmp_path)
    rounded, exact = make_plan(microbatch=5), make_plan(in_memory="host")
    assert prove.prove(exact, claim=Preserves.BITS).passes
    assert prove.prove(rounded, claim=Preserves.ROUNDING).passes
    found = prove.prove(rounded, claim=Preserves.BITS)
    assert (found.passes, found.fate) == (False, None)
    assert found.reason.startswith("it claims the same bits and has others, although the ")


def test_an_arm_that_fails_while_proving_is_no_proof(tmp_path, monkeypatch):
    prove = prover("tokens", tmp_path)
    assert prove.prove(make_plan(precision="fp17")).fate is Fate.REFUSED
    monkeypatch.setenv("HASTEN_TEST_HARM", "killed")
    found = prove.prove(Plan())
    assert (found.passes, found.fate, found.error) == (False, Fate.CRASHED, None)
    assert (found.reason, found.unjudged) == ("crashed: it was killed by SIGKILL", None)


def test_a_job_that_cannot_be_judged_says_so_of_every_plan(tmp_path):
    found = prover("drawing", tmp_path).prove(Plan())
    assert found == GradientProof(passes=False, reason=found.reason, unjudged=found.unjudged)
    assert found.unjudged is not None
    assert found.reason == f"no gradient can be judged: {found.unjudged}"
    assert found.unjudged.startswith("its loss draws random numbers")


def test_a_plain_job_that_fails_says_so_of_every_plan(tmp_path, monkeypatch):
    monkeypatch.setenv("HASTEN_TEST_HARM", "killed")
    prove = prover("tokens", tmp_path)
    found = [prove.prove(plan) for plan in (Plan(), make_plan(microbatch=5))]
    assert {each.reason for each in found} == {
        "no gradient can be judged: the plain job crashed: it was killed by SIGKILL"
    }
    assert {each.unjudged for each in found} == {"the plain job crashed: it was killed by SIGKILL"}


def test_a_folder_that_cannot_be_written_to_is_told(tmp_path):
    found = prover("tokens", tmp_path / "missing").prove(Plan())
    assert "make the folder first" in found.reason or "No such file" in found.reason
    assert not found.passes


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
    found = GradientProver(Arms(f"{JOBS}:{function}"), tmp_path).prove(make_plan(**plan))
    assert found.passes, found.reason
    assert os.listdir(tmp_path)
