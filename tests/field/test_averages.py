"""Public reports of averaged weights that were wrong, lost, or evaluated in place of others."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import hasten
from hasten.facts.choice import Preserves
from hasten.techniques.accumulation import TECHNIQUE
from support import setup_of, small_job
from support.training.reported_runs import IN_ORDER, assert_weights, check_resumes, plain_weights, trained, zeros

ROWS = small_job().train
EMA = hasten.ExponentialAverage(0.8)


def make_seeded():
    torch.manual_seed(0)
    return nn.Linear(6, 3)


def averaged(updates, decay=0.8):
    """Of the weights after each update, by the definition."""
    mean = dict(updates[0])
    for each in updates[1:]:
        mean = {name: decay * value + (1 - decay) * each[name] for name, value in mean.items()}
    return mean


def test_an_average_takes_one_value_an_update_and_none_a_microbatch():
    """SWivid/F5-TTS#631"""
    result, *_ = trained(hasten.make_plan(accumulation=4), average=EMA, **IN_ORDER)
    assert_weights(result.weights, averaged(plain_weights()))


def test_what_is_evaluated_before_an_average_begins_are_the_present_weights():
    """Lightning-AI/pytorch-lightning#21724"""
    changes = {"valid": ROWS, "evaluate_every": 1}
    present, late = (trained(average=each, **changes)[2] for each in (None, hasten.EqualAverage(0.75)))
    assert [each.results for each in late[:7]] == [each.results for each in present[:7]]
    assert late[-1].results != present[-1].results


@pytest.mark.parametrize("cut", [2, 9], ids=["before it began", "after"])
def test_an_average_that_begins_late_goes_on_where_it_was(cut, tmp_path):
    """hao-ai-lab/FastVideo#1440 and koda-dernet/Side-Step#38"""
    check_resumes(tmp_path, (cut,), average=hasten.EqualAverage(0.6), valid=ROWS)


def test_a_resumed_average_is_not_pulled_to_the_present_weights(tmp_path):
    """lightly-ai/lightly-train#892, ai2cm/ace#819 and #349"""
    check_resumes(tmp_path, (5,), average=hasten.ExponentialAverage(0.99), valid=ROWS, evaluate_every=1)


def test_training_goes_on_from_its_own_weights_after_an_evaluation_of_the_average():
    """PKU-YuanGroup/Open-Sora-Plan#186"""
    plain, watched = (trained(average=each, valid=ROWS, evaluate_every=1)[1] for each in (None, EMA))
    assert [each.loss for each in watched] == [each.loss for each in plain]


def test_batch_norms_statistics_are_averaged_as_torch_averages_them():
    """lucidrains/ema-pytorch#29"""

    def make():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))

    result, *_ = trained(average=EMA, model=make, shuffle=False)
    live = make()
    wanted = AveragedModel(live, multi_avg_fn=get_ema_multi_avg_fn(0.8), use_buffers=True)
    for weights in plain_weights(make=make):
        live.load_state_dict(weights)
        wanted.update_parameters(live)
    expected = wanted.module.state_dict() | {"1.num_batches_tracked": torch.tensor(10)}
    assert_weights(result.weights, expected)


def test_the_weights_that_are_kept_as_best_are_those_that_were_evaluated():
    """mllam/neural-lam#739"""
    result, *_ = trained(average=EMA, valid=ROWS, evaluate_every=3, stop=hasten.EarlyStopping(patience=50))
    found = functional.cross_entropy(result.model()(ROWS[0]), ROWS[1])
    assert found.item() == pytest.approx(result.results["loss"], rel=1e-6)


def test_an_average_of_16_bit_weights_moves_by_less_than_their_precision():
    """lucidrains/ema-pytorch#36"""

    def loss(model, batch):
        return functional.cross_entropy(model(batch[0].bfloat16()).float(), batch[1])

    changes = IN_ORDER | {"loss": loss, "model": lambda: zeros().bfloat16()}
    result, *_ = trained(average=hasten.ExponentialAverage(0.999), **changes)
    wanted = {name: each.bfloat16() for name, each in averaged(plain_weights(), 0.999).items()}
    assert_weights(result.weights, wanted, rtol=0.05, atol=1e-4)


def test_an_average_of_weights_that_stand_still_is_these_weights():
    """ostris/ai-toolkit#1034"""
    still = {"optimizer": lambda params: torch.optim.SGD(params, lr=0.0), "model": make_seeded}
    assert_weights(trained(average=EMA, **still)[0].weights, make_seeded().state_dict(), rtol=0, atol=1e-7)


def test_an_average_that_is_asked_for_is_kept():
    """ostris/ai-toolkit#524"""
    averaged_run, plain = (trained(average=each, **IN_ORDER)[0].weights for each in (EMA, None))
    assert all(not torch.equal(plain[name], each) for name, each in averaged_run.items())


def test_an_average_beside_frozen_layers_is_found_again(tmp_path):
    """bghira/SimpleTuner#1497"""

    def adapted():
        model = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 3))
        model[0].requires_grad_(False)
        return model

    check_resumes(tmp_path, (5,), average=EMA, model=adapted, valid=ROWS)


def test_a_teacher_that_moves_with_each_microbatch_is_reported():
    """lightly-ai/lightly-train#968"""
    state = {"teacher": nn.Linear(6, 3)}
    offered = TECHNIQUE.candidates(setup_of(nn.Linear(6, 3), None, state=state))
    assert {each.preserves for each in offered} == {Preserves.TRAINING}
    with hasten.prepare(small_job(state=state), hasten.make_plan(accumulation=4)) as run:
        assert any("Job.state['teacher'] changes once for each part of 2 samples" in each for each in run.notices)
