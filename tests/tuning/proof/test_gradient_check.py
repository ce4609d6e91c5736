"""Steps of real jobs looked at from inside: honest plans pass, and whatever is wrong with a gradient is caught."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from hasten.facts.job import Job
from hasten.facts.plan import Plan, make_plan
from hasten.tuning.proof.gradient_check import NORM, clipped_as, judge_gradients_of, keep_references
from hasten.tuning.trials.trial import Trial
from tuning.jobs import gradient_jobs as jobs

STEPS = 4
PLANS = {
    "digits": {"all": {"fused_optimizer": "fused", "channels_last": True, "conv_bn_bias": True, "in_memory": "host"}},
    "text": {"all": {"fused_optimizer": "fused", "microbatch": 5}},
    "tokens": {"accumulation": {"accumulation": 2}, "foreach": {"fused_optimizer": "foreach"}},
}
HARMS = {
    "digits": {"rescaled by 1.01": jobs.HARMS["rescaled by 1.01"], "without momentum": jobs.without_momentum},
    "text": jobs.HARMS_OF_CLIPPING,
    "tokens": jobs.HARMS | jobs.HARMS_OF_MICROBATCHES,
}


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[str, dict[str, Any]]]:
    """The folder and the answer of a job's references, made once."""

    @functools.cache
    def keep(name: str, first: int = 0) -> tuple[str, dict[str, Any]]:
        folder = str(tmp_path_factory.mktemp(name))
        return folder, references(getattr(jobs, name)(), folder, first)

    return keep


def references(job: Job, folder: str | Path, first: int = 0, steps: int = STEPS) -> dict[str, Any]:
    trial = Trial(job, Plan(), "job")
    try:
        return keep_references(trial, str(folder), first, steps)
    finally:
        trial.close()


def judged(
    job: Job, kept: tuple[str, dict[str, Any]], plan: Plan, change: Callable[[Trial], None] | None = None
) -> Any:
    trial = Trial(job, plan, "job")
    try:
        if change is not None:
            change(trial)
        return judge_gradients_of(trial, *kept)
    finally:
        trial.close()


def marked(name: str, *values: str) -> Any:
    """The examples take seconds."""
    return pytest.param(name, *values, marks=() if name == "tokens" else pytest.mark.proof)


@pytest.mark.trap(50)
@pytest.mark.parametrize(("name", "plan"), [marked(name, plan) for name, plans in PLANS.items() for plan in plans])
def test_an_honest_plan_passes(kept, name, plan):
    found = judged(getattr(jobs, name)(), kept(name), make_plan(**PLANS[name][plan]))
    assert found["passes"], found["reason"]
    assert 0 < found["gradient_error"] <= found["bound"] == 2.0


@pytest.mark.trap(50)
@pytest.mark.parametrize(("name", "harm"), [marked(name, harm) for name, harms in HARMS.items() for harm in harms])
def test_a_planted_harm_is_caught(kept, monkeypatch, name, harm):
    folder_and_answer = kept(name)
    HARMS[name][harm](monkeypatch.setattr)
    plan = make_plan(microbatch=5) if harm in jobs.HARMS_OF_MICROBATCHES else Plan()
    found = judged(getattr(jobs, name)(), folder_and_answer, plan)
    assert not found["passes"], found["reason"]


@pytest.mark.proof
def test_a_wrong_scale_that_clipping_hides_is_seen_in_the_norm(kept, monkeypatch):
    folder_and_answer = kept("text")
    assert all(norm > 1 for norm in folder_and_answer[1]["norms"]), "every step must be clipped"
    jobs.rescaled(1.01)(monkeypatch.setattr)
    assert NORM in judged(jobs.text(), folder_and_answer, Plan())["reason"]


def test_clipping_by_value_is_followed(tmp_path):
    answer = references(jobs.cut(), tmp_path)
    assert judged(jobs.cut(), (str(tmp_path), answer), make_plan(microbatch=5))["passes"]
    for value in (1.02e-3, None):
        assert not judged(
            jobs.cut(),
            (str(tmp_path), answer),
            Plan(),
            lambda trial, value=value: setattr(trial.run.setup.step, "clip_value", value),
        )["passes"]


def test_gradients_are_clipped_by_value_and_then_by_norm():
    job = replace(jobs.tokens(), clip_value=2.0, clip_norm=3.0)
    found = clipped_as(job, {"a": torch.tensor([5.0, -9.0]).double(), "b": torch.tensor([1.0]).double()})
    assert (found.norm, found.factor) == (3.0, pytest.approx(1.0, abs=1e-6))
    assert found.gradients["a"].tolist() == pytest.approx([2.0, -2.0], abs=1e-5)
    shorter = clipped_as(replace(job, clip_norm=1.5), {"a": torch.tensor([2.0, 2.0, 1.0]).double()})
    assert shorter.gradients["a"].tolist() == pytest.approx([1.0, 1.0, 0.5], abs=1e-5)


def test_a_job_that_draws_random_numbers_elsewhere_cannot_be_judged(tmp_path):
    assert "draws random numbers outside of dropout layers" in references(jobs.drawing(), tmp_path)["refused"]


def test_a_model_that_does_not_follow_the_seed_is_told(tmp_path):
    answer = references(jobs.other_weights(), tmp_path)
    found = judged(jobs.other_weights(), (str(tmp_path), answer), Plan())
    assert (found["passes"], found["gradient_error"]) == (False, None)
    assert "the model ignores Job.seed" in found["reason"]


def test_layers_behind_one_that_begins_with_zeros_are_judged_too(tmp_path, monkeypatch):
    answer = references(jobs.zeros_at_first(), tmp_path)
    jobs.before_each_move(lambda step: step.parameters[0].grad.mul_(1.5))(monkeypatch.setattr)
    found = judged(jobs.zeros_at_first(), (str(tmp_path), answer), Plan())
    assert "words.weight" in found["reason"]
    assert not found["passes"]


@pytest.mark.proof
def test_a_parameter_that_a_plan_takes_away_must_have_been_of_no_use(kept):
    def take_the_last_bias(trial: Trial) -> None:
        trial.run.setup.optimizer.removed["6.bias"] = trial.run.model[6].bias
        trial.run.model[6].bias = None

    found = judged(jobs.digits(), kept("digits"), Plan(), take_the_last_bias)
    assert (found["passes"], "6.bias" in found["reason"]) == (False, True)


@pytest.mark.parametrize("name", ["sparse", "short_numbers"])
def test_unusual_weights_are_judged(name, tmp_path, monkeypatch):
    job = getattr(jobs, name)
    answer = references(job(), tmp_path)
    assert answer["refused"] == ""
    found = judged(job(), (str(tmp_path), answer), make_plan(microbatch=6))
    assert found["passes"], found["reason"]
    jobs.rescaled(2.0)(monkeypatch.setattr)
    assert not judged(job(), (str(tmp_path), answer), Plan())["passes"]


@pytest.mark.proof
@pytest.mark.trap(50)
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("name", ["digits", "photos", "text", "tokens"])
def test_all_of_it_on_many_seeds(name, seed, tmp_path, monkeypatch):
    def job() -> Job:
        return replace(getattr(jobs, name)(), seed=1000 + seed)

    answer = references(job(), tmp_path, steps=8)
    for plan, choices in PLANS.get(name, {"fused": {"fused_optimizer": "fused"}}).items():
        found = judged(job(), (str(tmp_path), answer), make_plan(**choices))
        assert found["passes"], f"{plan}: {found['reason']}"
    for harm, plant in (jobs.HARMS | (jobs.HARMS_OF_MICROBATCHES if name == "tokens" else {})).items():
        with monkeypatch.context() as patch:
            plant(patch.setattr)
            plan = make_plan(microbatch=5) if harm in jobs.HARMS_OF_MICROBATCHES else Plan()
            found = judged(job(), (str(tmp_path), answer), plan)
        assert not found["passes"], f"{harm}: {found['reason']}"
