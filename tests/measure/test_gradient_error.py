from __future__ import annotations

import copy
import math
from dataclasses import replace
from functools import cache

import pytest
import torch
from torch import nn

from hasten.errors import InvalidMeasurement
from hasten.measure.float64_reference import nearby_gradients, reference_gradients
from hasten.measure.gradient_error import (
    GradientJudge,
    StepGradients,
    judge_updates,
    squared_errors,
    update_error,
)
from support.measure.small_models import BATCH, MODELS, batch_for, gradients, squared_error, start

STEPS = 8


def shuffled(model, batch, seed):
    order = torch.randperm(BATCH, generator=torch.Generator().manual_seed(seed))
    return gradients(model, tuple(each[order] for each in batch))


def in_microbatches(model, batch, seed):
    return gradients(model, batch, microbatch=3)


def channels_last(model, batch, seed):
    x, y = batch
    model = copy.deepcopy(model).to(memory_format=torch.channels_last)
    return gradients(model, (x.contiguous(memory_format=torch.channels_last), y))


@cache
def measured(kind, plan, seed=0, steps=STEPS):
    """Real steps: plain, plan and reference from the same weights, on new batches."""
    model, generator = start(kind, seed), torch.Generator().manual_seed(1000 + seed)
    batches = [batch_for(kind, generator) for _ in range(steps)]
    return [
        StepGradients(
            plain=gradients(model, batch),
            plan=plan(model, batch, seed + position),
            reference=reference_gradients(model, squared_error, [batch]),
        )
        for position, batch in enumerate(batches)
    ]


def judge_gradients(steps, *, terms):
    judge = GradientJudge(terms=terms)
    for step in steps:
        judge.add(step)
    return judge.verdict()


def judged(kind, steps):
    return judge_gradients(steps, terms=BATCH * MODELS[kind][1])


def clipped_before_unscaling(found):
    """Loss scale 1024, norm bound 1: the bound meets the scaled gradients."""
    norm = torch.stack([each.norm() for each in found.values()]).norm() * 1024
    return {name: each / norm.clamp(min=1) for name, each in found.items()}


def changed(name, change):
    return lambda found: {**found, name: change(found[name])}


WRONG = {
    "not divided by the microbatches": lambda found: {name: each * 3 for name, each in found.items()},
    "clipped before unscaling": clipped_before_unscaling,
    "rescaled by 1.01": lambda found: {name: each * 1.01 for name, each in found.items()},
}
LAST_BIAS = {"mlp": "2.bias", "words": "output.bias", "convolutional": "8.bias"}
HONEST = [
    *((kind, shuffled) for kind in MODELS),
    *((kind, in_microbatches) for kind in ("mlp", "words")),  # batch norm sees other batches in microbatches
    ("convolutional", channels_last),
]


@pytest.mark.trap(50)
@pytest.mark.parametrize(("kind", "plan"), HONEST)
def test_honest_rounding_passes_on_every_seed(kind, plan):
    verdicts = [judged(kind, measured(kind, plan, seed)) for seed in range(6)]
    assert [str(each) for each in verdicts if not each.passes] == []
    assert any(each.multiple for each in verdicts), "the plan must round in another way than the baseline"


@pytest.mark.trap(50)
@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("kind", MODELS)
def test_a_wrong_gradient_is_caught_every_time(kind, wrong):
    for seed in range(3):
        steps = measured(kind, shuffled, seed)
        verdict = judged(kind, [replace(step, plan=WRONG[wrong](step.plan)) for step in steps])
        assert not verdict.passes
        assert 100 < verdict.multiple < math.inf, str(verdict)


@pytest.mark.trap(50)
@pytest.mark.parametrize("kind", MODELS)
def test_one_wrong_bias_is_caught_and_named(kind):
    name = LAST_BIAS[kind]
    for seed in range(3):
        for change in (torch.neg, torch.zeros_like, lambda each: each * 1.01):
            steps = measured(kind, shuffled, seed)
            verdict = judged(kind, [replace(step, plan=changed(name, change)(step.plan)) for step in steps])
            assert (verdict.passes, verdict.worst) == (False, name)


def of_one(truth, plain, plan, dtype=torch.float32):
    def one(value):
        return {"weight": torch.tensor([value], dtype=dtype)}

    return StepGradients(plain=one(plain), plan=one(plan), reference={"weight": torch.tensor([truth]).double()})


def test_where_the_plain_job_is_exact_the_unit_is_the_formats_rounding():
    assert judge_gradients([of_one(1.0, 1.0, 1.0 + 2**-23)], terms=1).multiple == 1.0
    assert judge_gradients([of_one(1.0, 1.0, 1.0 + 2**-23)], terms=9).multiple == 0.5
    assert judge_gradients([of_one(1.0, 1.0, 1.0 + 2**-7, torch.bfloat16)], terms=1).multiple == pytest.approx(2, 1e-4)


def test_where_the_plain_job_rounds_more_than_the_format_its_error_is_the_unit():
    verdict = judge_gradients([of_one(1.0, 1.0 + 2**-10, 1.0 - 2**-9)], terms=1)
    assert (verdict.multiple, verdict.passes) == (2.0, True)
    assert not judge_gradients([of_one(1.0, 1.0 + 2**-10, 1.0 - 2**-8)], terms=1).passes


def test_a_verdict_says_what_was_compared_by_how_much_it_differs_and_what_is_allowed():
    of = "the update of weight differs from its float64 reference"
    allowed = "times the rounding error of the baseline; up to 2 times is allowed"
    exact = update_of(0.5, 0.0)
    assert str(judged_update(exact, update_of(0.5, 0.125))) == f"{of} by 0.25 of its norm, 381,300 {allowed}"
    assert str(judged_update(exact, exact)) == f"{of} by 0 of its norm, 0 {allowed}"
    assert str(judged_update(exact, update_of(0.5, math.nan))) == f"{of}, inf {allowed}"


@pytest.mark.trap(51)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_one_number_that_is_not_finite_fails_by_name(value):
    def spoil(gradient):
        gradient = gradient.clone()
        gradient.view(-1)[3] = value
        return gradient

    steps = [*measured("mlp", shuffled)]
    steps[2] = replace(steps[2], plan=changed("0.weight", spoil)(steps[2].plan))
    verdict = judged("mlp", steps)
    assert (verdict.passes, verdict.worst, verdict.multiple) == (False, "0.weight", math.inf)
    assert str(verdict) == "step 2: the plan's gradient of 0.weight has 1 of 80 numbers that are NaN or infinite"


def test_a_gradient_that_is_missing_misshapen_or_unknown_fails_by_name():
    (step,) = measured("mlp", shuffled, steps=1)
    dropped = {name: each for name, each in step.plan.items() if name != "2.bias"}
    misshapen = changed("2.weight", torch.t)(step.plan)
    plans = [dropped, misshapen, {**step.plan, "3.bias": torch.zeros(1)}]
    verdicts = [judged("mlp", [replace(step, plan=plan)]) for plan in plans]
    assert [each.passes for each in verdicts] == [False] * 3
    assert [each.worst for each in verdicts] == ["2.bias", "2.weight", "3.bias"]
    assert "the plan has no gradient of 2.bias" in str(verdicts[0])
    assert "shape [16, 1], not [1, 16]" in str(verdicts[1])


def test_a_reference_plain_job_or_measurement_that_judges_nothing_is_refused():
    (step,) = measured("mlp", shuffled, steps=1)
    broken = changed("2.bias", lambda each: each * math.nan)
    zeros = {name: torch.zeros_like(each) for name, each in step.reference.items()}
    without = {name: each for name, each in step.plain.items() if name != "2.bias"}
    for wrong, what in (
        ([replace(step, plain=zeros, plan=zeros, reference=zeros)], "every reference gradient is zero"),
        ([replace(step, plain=broken(step.plain))], "the baseline's gradient of 2.bias"),
        ([replace(step, reference=broken(step.reference))], "the baseline's gradient of 2.bias is not finite"),
        ([replace(step, plain=without, plan=without)], "the baseline has no gradient of 2.bias"),
    ):
        with pytest.raises(InvalidMeasurement, match=what):
            judged("mlp", wrong)


def test_a_parameter_that_the_loss_does_not_reach_must_stay_untouched():
    model = nn.ModuleDict({"used": nn.Linear(5, 1), "unused": nn.Linear(5, 1)})
    batch = batch_for("mlp", torch.Generator().manual_seed(0))

    def loss(model, batch):
        return squared_error(model["used"], batch)

    plain, truth = gradients(model, batch, loss=loss), reference_gradients(model, loss, [batch])
    step = StepGradients(plain=plain, plan=plain, reference=truth)
    assert not truth["unused.weight"].any()
    assert "unused.weight" not in plain
    assert judged("mlp", [step]).passes
    touched = {**plain, "unused.bias": torch.zeros(1)}
    assert "the baseline has no gradient of unused.bias" in str(judged("mlp", [replace(step, plan=touched)]))
    both = replace(step, plain=touched, plan={**plain, "unused.bias": torch.tensor([1e-30])})
    assert (judged("mlp", [both]).worst, judged("mlp", [both]).multiple) == ("unused.bias", math.inf)


# ── kinks ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def kinked():
    """So many units that in most steps one lies on the kink of its ReLU, but for rounding."""
    return nn.Sequential(nn.Linear(5, 100), nn.Tanh(), nn.Linear(100, 2000), nn.ReLU(), nn.Linear(2000, 1))


def at_the_kinks(seed):
    """Judged with and without nearby weights: a plan whose sums round otherwise, and thus has other flips."""
    torch.manual_seed(seed)
    model, steps, nearby = kinked(), [], {}
    for position in range(STEPS):
        batch = batch_for("mlp", torch.Generator().manual_seed(100 * seed + position))
        truth = reference_gradients(model, squared_error, [batch])
        other = nearby_gradients(model, squared_error, batch, terms=100, seed=1000 + position)
        steps.append(StepGradients(plain=gradients(model, batch), plan=other, reference=truth))
        for number in range(2):
            found = nearby_gradients(model, squared_error, batch, terms=400, seed=2 * position + number)
            for name, error in squared_errors(found, truth).items():
                nearby[name] = nearby.get(name, 0) + error / 2
    verdicts = []
    for known in (None, nearby):
        judge = GradientJudge(terms=BATCH, nearby=known, spares=known is not None)
        for step in steps:
            judge.add(step)
        verdicts.append(judge.verdict())
    return verdicts


def test_flips_at_a_kink_are_no_errors_where_nearby_weights_have_them_too():
    blind, seeing = zip(*(at_the_kinks(seed) for seed in range(3)), strict=True)
    assert max(each.multiple for each in blind) > 10, "there must be flips"
    assert [str(each) for each in seeing if not each.passes] == []


def with_a_wrong_step(factor, steps=STEPS):
    """Judged as whoever looks nearby does, with the first step wrong by this factor."""
    judge = GradientJudge(terms=BATCH, spares=True)
    for position, step in enumerate(measured("mlp", shuffled, steps=steps)):
        wrong = {name: each * (1 if position else factor) for name, each in step.plan.items()}
        judge.add(replace(step, plan=wrong))
    return judge.verdict()


def test_one_step_is_spared_what_a_flip_explains_and_no_more():
    assert with_a_wrong_step(1.05).passes
    assert not with_a_wrong_step(1.2).passes
    assert not with_a_wrong_step(1.05, steps=3).passes


# ── updates ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def update_of(change, error, dtype=torch.float32):
    """Of a hundred weights of 1 that move by `change`, and are wrong by `error`."""
    before = torch.ones(100, dtype=dtype)
    return update_error(before, (before.double() + change + error).to(dtype), before.double() + change)


def judged_update(plain, plan):
    return judge_updates({"weight": plain}, {"weight": plan})


def test_an_update_may_round_twice_as_much_as_a_weight_is_rounded_when_it_is_stored():
    exact, spacing = update_of(0.0, 0.0), 2**-23
    assert judged_update(exact, update_of(0.0, spacing)).multiple == pytest.approx(2.0)
    assert not judged_update(exact, update_of(0.0, 2 * spacing)).passes
    assert judged_update(update_of(0.0, 2 * spacing), update_of(0.0, 4 * spacing)).multiple == pytest.approx(2.0)


@pytest.mark.trap(51)
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_an_update_to_a_number_that_is_not_finite_fails(value):
    verdict = judged_update(update_of(0.1, 0.0), update_of(0.1, value))
    assert (verdict.passes, verdict.multiple) == (False, math.inf)


def test_what_only_the_plan_moves_is_a_fault_and_what_it_lacks_is_not_judged():
    error = update_of(0.1, 0.0)
    found = judge_updates({"weight": error}, {"weight": error, "bias": error})
    assert (found.passes, str(found)) == (False, "the baseline does not update bias")
    assert judge_updates({"weight": error, "bias": error}, {"weight": error}).passes
