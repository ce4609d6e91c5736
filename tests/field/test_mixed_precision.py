"""Public reports of training in 16 bits that lost updates, gradients or steps."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn
from torch.nn import functional

import hasten
from hasten.errors import NonFinite
from support import small_job
from support.training.reported_runs import IN_ORDER, assert_weights, plain_weights, trained, zeros
from support.training.saved_runs import every, saved_in

BF16 = hasten.make_plan(precision="bf16")


def test_a_pass_without_gradients_before_the_one_with_them_leaves_gradients_whole():
    """pytorch/pytorch#142234, Lightning-AI/pytorch-lightning#20644"""

    def conditioned(model, batch):
        with torch.no_grad():
            model(batch[0])
        return functional.cross_entropy(model(batch[0]), batch[1])

    once, twice = (trained(BF16, **IN_ORDER, **loss)[0] for loss in ({}, {"loss": conditioned}))
    assert_weights(twice.weights, once.weights)
    assert any(each.any() for each in once.weights.values())


def test_a_norms_weight_leaves_one_although_steps_are_smaller_than_its_precision():
    """vllm-project/speculators#765"""

    def weights(dtype):
        job = {"model": lambda: nn.Sequential(nn.LayerNorm(6), nn.Linear(6, 3)).to(dtype), "shuffle": False}
        optimizer = lambda params: torch.optim.AdamW(params, lr=5e-4)  # noqa: E731
        loss = lambda model, batch: functional.cross_entropy(model(batch[0].to(dtype)), batch[1])  # noqa: E731
        return trained(epochs=6, optimizer=optimizer, loss=loss, **job)[0].weights["0.weight"]

    found, wanted = weights(torch.bfloat16).float(), weights(torch.float32)
    assert (wanted - 1).abs().min() > 1e-3
    torch.testing.assert_close(found, wanted, rtol=0, atol=2**-8)


def test_weight_decay_acts_on_16_bit_weights():
    """Nerogar/OneTrainer#996"""

    def ones():
        model = nn.Linear(6, 3).bfloat16()
        return [nn.init.ones_(each) for each in model.parameters()] and model

    result, *_ = trained(
        model=ones,
        loss=lambda model, batch: model(batch[0].bfloat16()).float().mean() * 0,
        optimizer=lambda params: torch.optim.AdamW(params, lr=1e-2, weight_decay=0.1),
        epochs=20,
    )
    for each in result.weights.values():
        torch.testing.assert_close(each.float(), torch.full(each.shape, 0.999**100), rtol=2**-8, atol=0)


def test_gradients_of_a_step_are_gone_in_the_next_one():
    """facebookresearch/nwm#16"""
    wanted = plain_weights()[-1]
    assert_weights(trained(BF16, **IN_ORDER)[0].weights, wanted, rtol=0.02, atol=2e-3)


def scaled(steps, *, spoilt=(), **changes):
    """A run with a loss scale, as of fp16; the gradients of some steps are not finite. Its weights and its rates."""
    calls = 0

    def loss(model, batch):
        nonlocal calls
        calls += 1
        mean = functional.cross_entropy(model(batch[0]), batch[1])
        return mean * float("inf") if calls in spoilt else mean

    rates = []
    with hasten.prepare(small_job(**{"loss": loss} | IN_ORDER | changes)) as run:
        run.built.step.window.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        for batch in run.batches():
            rates.append(run.schedule.rates()[0])
            run.step(batch)
        assert run.built.step.skips.applied == steps
        return run.weights(), rates


def test_gradients_are_clipped_after_their_scale_is_taken_out():
    """NCAR/miles-credit#141, rwth-i6/returnn#1595"""
    weights, _ = scaled(10, clip_norm=0.1)
    assert_weights(weights, trained(clip_norm=0.1, **IN_ORDER)[0].weights)


def test_a_step_that_is_skipped_lets_the_next_one_be_taken():
    """Haian-Jin/LVSM#19"""
    weights, _ = scaled(10, spoilt=(3, 4), max_steps=10, epochs=None)
    assert all(each.isfinite().all() for each in weights.values())


def test_a_schedule_of_epochs_moves_under_a_loss_scale():
    """idiap/coqui-ai-Trainer#23"""
    schedule = hasten.Schedule(lambda optimizer: torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5), "epoch")
    assert scaled(10, schedule=schedule)[1] == [0.1] * 5 + [0.05] * 5


def test_a_schedule_does_not_move_with_a_step_that_was_skipped():
    """Lightning-AI/pytorch-lightning#21339"""
    schedule = hasten.Schedule(lambda optimizer: torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5), "step")
    _, rates = scaled(4, spoilt=(1, 2), schedule=schedule, max_steps=4, epochs=None)
    assert rates == [0.1, 0.1, 0.1, 0.05, 0.025, 0.0125]


def test_adams_second_moment_in_16_bits_is_no_nan():
    """keras-team/keras#21238"""

    def weights(dtype):
        job = {"model": lambda: nn.Linear(6, 3).to(dtype), "optimizer": lambda params: torch.optim.Adam(params, 1e-2)}
        loss = lambda model, batch: functional.cross_entropy(model(batch[0].to(dtype)).float(), batch[1])  # noqa: E731
        return trained(loss=loss, **job)[0].weights

    exact = weights(torch.float32)
    assert_weights({name: each.float() for name, each in weights(torch.bfloat16).items()}, exact, rtol=0.1, atol=0.02)


def test_a_loss_of_16_bit_predictions_is_computed_in_float32():
    """Modalities/modalities#464"""
    rows = torch.randn(64, 6, generator=torch.Generator().manual_seed(0)).bfloat16() * 40
    labels, model = torch.zeros(64, dtype=torch.long), nn.Linear(6, 3).bfloat16()
    found = hasten.supervised(functional.cross_entropy)(model, (rows, labels))
    wanted = functional.cross_entropy(model(rows).float(), labels, reduction="sum")
    assert found.total.item() == pytest.approx(wanted.item(), rel=1e-6)


def test_a_loss_that_is_no_number_leaves_weights_and_checkpoints_whole(tmp_path):
    """Nerogar/OneTrainer#1154"""
    calls = itertools.count(1)

    def loss(model, batch):
        return functional.cross_entropy(model(batch[0]), batch[1]) * (float("nan") if next(calls) == 7 else 1)

    with pytest.raises(NonFinite, match="optimizer step 7"):
        hasten.train(small_job(loss=loss), run_dir=tmp_path / "run", saving=every(2), receivers=[])
    assert saved_in(tmp_path / "run") == [6, 4]


def test_the_norm_that_is_logged_has_no_scale_in_it():
    """huggingface/transformers#40799"""
    norms = []
    for scale in (1.0, 1024.0):
        with hasten.prepare(small_job(clip_norm=0.1, **IN_ORDER)) as run:
            run.built.step.window.scaler = torch.amp.GradScaler("cpu", init_scale=scale)
            norms.append([run.step(batch) is None or run.gradient_norm for batch in run.batches()])
    assert norms[0] == pytest.approx(norms[1], rel=1e-6)


def test_16_bit_weights_train_under_a_loss_scale():
    """huggingface/diffusers#6482"""

    def loss(model, batch):
        return functional.cross_entropy(model(batch[0].half()).float(), batch[1])

    found, _ = scaled(10, loss=loss, model=lambda: zeros().half())
    assert_weights(found, {name: each.half() for name, each in plain_weights()[-1].items()}, rtol=0.02, atol=2e-3)
