from __future__ import annotations

import copy
import math
import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from hasten.errors import InvalidMeasurement
from hasten.facts.loss import Loss
from hasten.facts.plan import Proof
from hasten.measure.oracle import WHOLE, StepGradients, judge_gradients, reference_gradients

BATCH, STEPS = 8, 8


class Words(nn.Module):
    """Embedding, layer norm, one output; the mean over seven positions."""

    def __init__(self, sparse=False):
        super().__init__()
        self.embedding = nn.Embedding(20, 6, sparse=sparse)
        self.norm = nn.LayerNorm(6)
        self.output = nn.Linear(6, 1)

    def forward(self, x):
        return self.output(self.norm(self.embedding(x)).mean(1))


def mlp():
    return nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, 1))


def convolutional():
    """With biases before batch norm: their true gradient is zero, and what a job computes there is noise alone."""
    layers = [nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 1))


MODELS = {"mlp": (mlp, 1), "words": (Words, 7), "convolutional": (convolutional, 49)}  # and positions per sample


def batch_for(kind, generator):
    target = torch.randn(BATCH, 1, generator=generator)
    if kind == "words":
        return torch.randint(0, 20, (BATCH, 7), generator=generator), target
    return torch.randn(BATCH, *((5,) if kind == "mlp" else (3, 9, 9)), generator=generator), target


def squared_error(model, batch):
    x, y = batch
    return Loss(F.mse_loss(model(x), y, reduction="sum"), len(x))


def gradients(model, batch, *, microbatch=BATCH, loss=squared_error, factor=1.0):
    """Of one step as a job runs it: totals summed over microbatches, divided once. The model given is left alone."""
    model = copy.deepcopy(model)
    for part in zip(*(each.split(microbatch) for each in batch), strict=True):
        loss(model, part).total.backward()
    found = {name: each.grad for name, each in model.named_parameters() if each.grad is not None}
    return {name: each * (factor / BATCH) for name, each in found.items()}


def shuffled(model, batch, seed):
    order = torch.randperm(BATCH, generator=torch.Generator().manual_seed(seed))
    return gradients(model, tuple(each[order] for each in batch))


def in_microbatches(model, batch, seed):
    return gradients(model, batch, microbatch=3)


def channels_last(model, batch, seed):
    x, y = batch
    model = copy.deepcopy(model).to(memory_format=torch.channels_last)
    return gradients(model, (x.contiguous(memory_format=torch.channels_last), y))


def start(kind, seed):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return MODELS[kind][0]()


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


def judged(kind, steps, **options):
    return judge_gradients(steps, terms=BATCH * MODELS[kind][1], **options)


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
    verdicts = [judged(kind, measured(kind, plan, seed)) for seed in range(20)]
    assert [str(each) for each in verdicts if not each.passes] == []
    assert any(each.plan_error != each.plain_error for each in verdicts), "the plan must round otherwise than the job"


@pytest.mark.trap(50)
@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("kind", MODELS)
def test_a_wrong_gradient_is_caught_every_time(kind, wrong):
    for seed in range(10):
        steps = measured(kind, shuffled, seed)
        verdict = judged(kind, [replace(step, plan=WRONG[wrong](step.plan)) for step in steps])
        assert not verdict.passes
        assert 100 < verdict.multiple < math.inf, str(verdict)


@pytest.mark.trap(50)
@pytest.mark.parametrize("kind", MODELS)
def test_one_wrong_bias_is_caught_and_named(kind):
    name = LAST_BIAS[kind]
    for seed in range(10):
        for change in (torch.neg, torch.zeros_like, lambda each: each * 1.01):
            steps = measured(kind, shuffled, seed)
            verdict = judged(kind, [replace(step, plan=changed(name, change)(step.plan)) for step in steps])
            assert (verdict.passes, verdict.worst) == (False, name)


def tiny(factor):
    """Of a large weight and a bias whose gradient is ten thousand million times smaller."""
    truth = {"weight": torch.full((100,), 1e5).double(), "bias": torch.tensor([1e-5, 3e-5]).double()}
    plain = {name: (each * (1 + 1e-7)) for name, each in truth.items()}
    plan = {name: each.float() for name, each in (plain | {"bias": plain["bias"] * factor}).items()}
    return [StepGradients(plain={name: each.float() for name, each in plain.items()}, plan=plan, reference=truth)]


def test_a_wrong_tiny_tensor_does_not_hide_behind_a_large_one():
    assert judge_gradients(tiny(1.0), terms=10_000).passes
    verdict = judge_gradients(tiny(1.01), terms=10_000)
    assert (verdict.passes, verdict.worst) == (False, "bias")


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
    assert (verdict.plain_error, verdict.plan_error, verdict.multiple) == (2**-10, 2**-9, 2.0)
    assert verdict.passes
    assert verdict.proof == Proof(gradient_error=2.0, bound=2.0)
    assert not judge_gradients([of_one(1.0, 1.0 + 2**-10, 1.0 - 2**-9)], terms=1, bound=1.9).passes


@pytest.mark.parametrize("bound", [math.nan, math.inf, 0.0])
def test_a_bound_that_everything_or_nothing_meets_is_refused(bound):
    with pytest.raises(InvalidMeasurement, match="judge nothing"):
        judge_gradients([of_one(1.0, 1.0, math.nan)], terms=1, bound=bound)


def test_what_is_noise_in_one_parameter_must_be_small_beside_the_whole():
    def verdict(noise):
        truth = {"weight": torch.ones(1).double(), "bias": torch.zeros(1).double()}
        plain = {"weight": torch.ones(1), "bias": torch.tensor([1e-9])}
        step = StepGradients(plain=plain, plan={**plain, "bias": torch.tensor([noise])}, reference=truth)
        return judge_gradients([step], terms=10_000)

    assert verdict(1e-5).passes
    assert (verdict(1e-4).passes, verdict(1e-4).worst) == (False, WHOLE)


def test_one_wrong_step_among_right_ones_is_enough():
    steps = measured("mlp", shuffled)
    steps[1] = replace(steps[1], plan=WRONG["rescaled by 1.01"](steps[1].plan))
    assert not judged("mlp", steps).passes


@pytest.mark.trap(51)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_one_number_that_is_not_finite_fails_by_name(value):
    def spoil(gradient):
        gradient = gradient.clone()
        gradient.view(-1)[3] = value
        return gradient

    steps = measured("mlp", shuffled)
    steps[2] = replace(steps[2], plan=changed("0.weight", spoil)(steps[2].plan))
    verdict = judged("mlp", steps)
    assert (verdict.passes, verdict.worst, verdict.proof.gradient_error) == (False, "0.weight", math.inf)
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
        ([], "0 steps"),
        ([replace(step, plain=zeros, plan=zeros, reference=zeros)], "every reference gradient is zero"),
        ([replace(step, plain=broken(step.plain))], "the plain job's gradient of 2.bias"),
        ([replace(step, reference=broken(step.reference))], "the reference gradient of 2.bias is not finite"),
        ([replace(step, plain=without, plan=without)], "the plain job has no gradient of 2.bias"),
        ([replace(step, reference={"2.bias": step.reference["2.bias"]})], "has no reference gradient"),
        ([step, replace(step, reference=without)], "2.bias is not in every reference"),
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
    assert "the plain job has no gradient of unused.bias" in str(judged("mlp", [replace(step, plan=touched)]))
    both = replace(step, plain=touched, plan={**plain, "unused.bias": torch.tensor([1e-30])})
    assert (judged("mlp", [both]).worst, judged("mlp", [both]).multiple) == ("unused.bias", math.inf)


def test_a_sparse_gradient_is_judged_like_its_dense_one():
    model, batch = Words(sparse=True), batch_for("words", torch.Generator().manual_seed(0))
    plain = gradients(model, batch)
    assert plain["embedding.weight"].is_sparse
    truth = reference_gradients(model, squared_error, [batch])
    dense = changed("embedding.weight", torch.Tensor.to_dense)(plain)
    assert judged("words", [StepGradients(plain=plain, plan=dense, reference=truth)]).passes
    wrong = changed("embedding.weight", lambda each: each * 1.01)(plain)
    assert not judged("words", [StepGradients(plain=plain, plan=wrong, reference=truth)]).passes


# ── the reference ───────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("kind", MODELS)
def test_the_reference_is_what_a_float64_job_computes(kind):
    model, batch = start(kind, 0), batch_for(kind, torch.Generator().manual_seed(0))
    whole = [each.double() if each.is_floating_point() else each for each in batch]
    expected = gradients(copy.deepcopy(model).double(), whole)
    found = reference_gradients(model, squared_error, [batch])
    assert found.keys() == expected.keys()
    for name, each in found.items():
        assert each.dtype == torch.float64
        torch.testing.assert_close(each, expected[name], rtol=1e-12, atol=1e-14)


def with_a_mean(model, batch):
    return F.mse_loss(model(batch[0]), batch[1])


def with_a_penalty(model, batch):
    return replace(squared_error(model, batch), auxiliary=model(batch[0]).abs().mean())


@pytest.mark.parametrize("loss", [with_a_mean, squared_error, with_a_penalty])
def test_uneven_batches_weigh_by_what_they_hold(loss):
    model, (x, y) = start("mlp", 0), batch_for("mlp", torch.Generator().manual_seed(0))
    whole = reference_gradients(model, loss, [(x, y)])
    parts = reference_gradients(model, loss, [(x[:5], y[:5]), (x[5:], y[5:])])
    for name in whole:
        torch.testing.assert_close(parts[name], whole[name], rtol=1e-12, atol=1e-14)


def test_an_auxiliary_term_counts_as_the_mean_that_it_is():
    model, batch = start("mlp", 0), batch_for("mlp", torch.Generator().manual_seed(0))
    found = reference_gradients(model, with_a_penalty, [batch])
    expected = reference_gradients(model, lambda m, b: with_a_mean(m, b) + m(b[0]).abs().mean(), [batch])
    for name in found:
        torch.testing.assert_close(found[name], expected[name], rtol=1e-12, atol=1e-14)


@pytest.mark.trap(47)
def test_the_reference_changes_nothing_of_the_callers():
    model, batch = start("convolutional", 0), batch_for("convolutional", torch.Generator().manual_seed(0))
    squared_error(model, batch).total.backward()
    given = [*model.state_dict().values(), *(each.grad for each in model.parameters()), *batch]
    before = [each.clone() for each in given]
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()

    def drawing(model, batch):
        assert torch.zeros(1).dtype == torch.float64
        return Loss(squared_error(model, batch).total + torch.rand(1).sum() + random.random() + np.random.rand(), 1)

    with torch.no_grad():
        reference_gradients(model, drawing, [batch])
    after = [*model.state_dict().values(), *(each.grad for each in model.parameters()), *batch]
    assert all(one is other or torch.equal(one, other) for one, other in zip(before, after, strict=True))
    assert torch.equal(states[0], torch.get_rng_state())
    assert states[1:] == (random.getstate(), np.random.get_state()[1].tolist())
    assert torch.get_default_dtype() == torch.float32
    assert all(each.dtype == torch.float32 for each in model.parameters())


def test_a_loss_that_casts_is_refused_as_a_reference():
    batch = batch_for("mlp", torch.Generator().manual_seed(0))
    with pytest.raises(InvalidMeasurement, match=r"is torch\.float32"):
        reference_gradients(mlp(), lambda model, batch: with_a_mean(model, batch).float(), [batch])
    with pytest.raises(InvalidMeasurement, match="nothing to sum over"):
        reference_gradients(mlp(), squared_error, [])
