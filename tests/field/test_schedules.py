"""Public reports of learning rates that were not those of the schedule."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

import hasten
from hasten.errors import JobError, Misconfigured
from support import small_job
from support.training.reported_runs import Stream, check_resumes, trained

ROWS = small_job().train


def torchs_rates(build, steps, every=1):
    """What each update uses, by a loop in plain torch. every: updates between two steps of the scheduler."""
    optimizer = torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=0.1)
    scheduler, rates = build(optimizer), []
    for step in range(1, steps + 1):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        if step % every == 0:
            scheduler.step()
    return rates


def rates_of(plan=None, **changes):
    return [each.learning_rate for each in trained(plan, **changes)[1]]


def cosine(optimizer, total_steps):
    return lr_scheduler.CosineAnnealingLR(optimizer, total_steps)


def test_a_cosine_of_steps_has_the_steps_of_the_run_for_its_length():
    """ScrollPrize/villa#1495"""
    assert rates_of(schedule=cosine) == pytest.approx(torchs_rates(lambda optimizer: cosine(optimizer, 10), 10))


def test_max_steps_ends_a_schedule_where_it_ends_the_run():
    """vllm-project/speculators#1104"""
    found = rates_of(schedule=cosine, max_steps=7, epochs=5)
    assert found == pytest.approx(torchs_rates(lambda optimizer: cosine(optimizer, 7), 7))


def test_microbatches_do_not_move_a_schedule():
    """starVLA/starVLA#210, EvolvingLMMs-Lab/OneVision-Encoder#82, sgl-project/SpecForge#364, h2oai/h2o-llmstudio#663"""
    assert rates_of(hasten.make_plan(accumulation=4), schedule=cosine) == rates_of(schedule=cosine)


def test_a_warm_up_does_not_begin_again_after_a_resume(tmp_path):
    """PolymathicAI/the_well#63"""

    def warmed(optimizer, total_steps):
        parts = lr_scheduler.LinearLR(optimizer, 0.1, total_iters=3), cosine(optimizer, total_steps - 3)
        return lr_scheduler.SequentialLR(optimizer, parts, [3])

    check_resumes(tmp_path, (2, 6), schedule=warmed)


def test_a_plateau_lets_as_many_bad_evaluations_pass_as_its_patience():
    """paiml/aprender#2135"""
    found = rates_of(
        schedule=lambda optimizer: lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=2),
        valid=ROWS,
        eval_loss=lambda model, batch: torch.ones(()),
        evaluate_every=1,
        max_steps=6,
    )
    assert found == [0.1] * 4 + [0.05] * 2  # the first is the best, two are bad, the third reduces the rate


def test_the_first_update_has_the_first_rate_of_a_warm_up():
    """verl-project/verl#3674, deepspeedai/DeepSpeed#5287"""

    def warmed(optimizer):
        return lr_scheduler.LinearLR(optimizer, 0.25, total_iters=3)

    assert rates_of(schedule=hasten.Schedule(warmed, "step"), epochs=1) == pytest.approx(torchs_rates(warmed, 5))


def test_a_warm_up_of_epochs_lasts_epochs():
    """wenet-e2e/wespeaker#446"""

    def warmed(optimizer, total_epochs):
        return lr_scheduler.LinearLR(optimizer, 0.25, total_iters=total_epochs - 1)

    found = rates_of(schedule=warmed, epochs=4)
    assert found == pytest.approx(torchs_rates(lambda optimizer: warmed(optimizer, 4), 20, every=5))


def test_a_schedule_without_a_unit_is_refused_where_it_could_be_steps_or_epochs():
    """Lightning-AI/pytorch-lightning#19774"""
    with pytest.raises(JobError, match="unit"):
        rates_of(schedule=lambda optimizer: lr_scheduler.CosineAnnealingLR(optimizer, 10))


def test_a_schedule_that_needs_a_length_nobody_knows_is_refused():
    """paiml/entrenar#277"""
    with pytest.raises(JobError, match="the training data has no length"):
        rates_of(schedule=cosine, train=Stream(12), epochs=1, model=lambda: nn.Linear(1, 1))


def test_groups_keep_the_ratio_of_their_rates():
    """huggingface/pytorch-image-models#2532"""
    job = small_job(
        parameters=lambda model: [{"params": [model.weight]}, {"params": [model.bias], "lr": 0.01}], schedule=cosine
    )
    with hasten.prepare(job) as run:
        for batch in run.batches():
            weight, bias = (group["lr"] for group in run.optimizers[0].param_groups)
            assert bias == pytest.approx(weight / 10)
            run.step(batch)


def test_a_schedule_of_one_length_is_refused_for_a_prolonged_run(tmp_path):
    """thinking-machines-lab/tinker-cookbook#448"""
    hasten.train(small_job(schedule=cosine), run_dir=tmp_path / "run", receivers=[])
    longer = small_job(schedule=cosine, epochs=3)
    with pytest.raises(Misconfigured, match=r"schedule\.length: 10 steps → 15 steps"):
        hasten.resume(longer, run_dir=tmp_path / "run", receivers=[], allow_change=["epochs"])
