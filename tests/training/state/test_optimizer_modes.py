"""Optimizers with train() and eval(): steps in the one mode, evaluations and kept weights in the other."""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor, nn
from torch.nn import functional

import hasten
from hasten.facts.plan import Plan, make_plan
from hasten.techniques.setup import OptimizerOptions
from hasten.training.weights.export import export_weights
from hasten.tuning.mesh.mesh_needs import state_bytes
from hasten.tuning.proof.gradient_check import judge_gradients_of, keep_references
from hasten.tuning.range_test import range_test
from hasten.tuning.trials.trial import Trial
from support import small_job
from support.training.collected_events import Collected
from support.training.complete_runs import checkpoints_of
from support.training.schedule_free import ScheduleFreeSGD

Weights = dict[str, Tensor]


def model(dtype: torch.dtype = torch.float32) -> nn.Module:
    made, generator = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)), torch.Generator().manual_seed(2)
    with torch.no_grad():
        for each in made.parameters():
            each.copy_(torch.randn(each.shape, generator=generator) * 0.3)
    return made.to(dtype)


def free_job(**changes: Any) -> hasten.Job:
    return small_job(
        **{"model": model, "optimizer": ScheduleFreeSGD, "valid": small_job().train, "shuffle": False} | changes
    )


def both(params: Any) -> list[torch.optim.Optimizer]:
    params = list(params)
    return [torch.optim.AdamW(params[:2], lr=0.05), ScheduleFreeSGD(params[2:])]


def plain_loop(optimizer: Callable[[Any], Any] = ScheduleFreeSGD, epochs: int = 2) -> list[tuple[float, Weights]]:
    """By hand, as the optimizer's authors say: after each epoch, the loss and the weights in evaluation mode."""
    (rows, labels), trained, found = small_job().train, model(), []
    made = optimizer(trained.parameters())
    optimizers = made if isinstance(made, list) else [made]
    for _ in range(epochs):
        for each in optimizers:
            getattr(each, "train", lambda: None)()
        for begin in range(0, 40, 8):
            functional.cross_entropy(trained(rows[begin : begin + 8]), labels[begin : begin + 8]).backward()
            for each in optimizers:
                each.step()
                each.zero_grad()
        for each in optimizers:
            getattr(each, "eval", lambda: None)()
        with torch.no_grad():
            loss = functional.cross_entropy(trained(rows), labels).item()
        found.append((loss, copy.deepcopy(trained.state_dict())))
    return found


def evaluations(run: Path) -> list[Any]:
    events = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [(each["step"], each["results"]) for each in events if each["event"] == "evaluated"]


def equal(found: Any, wanted: Any) -> bool:
    return found.keys() == wanted.keys() and all(torch.equal(found[name], each) for name, each in wanted.items())


def close(found: Any, wanted: Any) -> None:
    assert found.keys() == wanted.keys()
    for name, each in wanted.items():
        torch.testing.assert_close(found[name], each, rtol=1e-4, atol=1e-6)


OPTIMIZERS = pytest.mark.parametrize("optimizer", [ScheduleFreeSGD, both], ids=["one", "beside another"])


@OPTIMIZERS
@pytest.mark.parametrize("plan", [{"microbatch": 3}, pytest.param(None, marks=pytest.mark.proof)], ids=str)
def test_evaluations_and_kept_weights_are_those_of_evaluation_mode(optimizer, plan):
    collected = Collected()
    result = hasten.train(free_job(optimizer=optimizer), plan and make_plan(**plan), receivers=[collected])
    wanted = plain_loop(optimizer)
    losses = [each.results["loss"] for each in collected.events if hasattr(each, "results") and hasattr(each, "best")]
    assert losses == pytest.approx([loss for loss, _ in wanted], rel=1e-4)
    close(result.weights, wanted[-1][1])
    rows, labels = small_job().train
    with torch.no_grad():
        loss = functional.cross_entropy(result.model()(rows), labels).item()
    assert loss == pytest.approx(result.results["loss"], rel=1e-5)


@OPTIMIZERS
def test_how_often_a_run_is_evaluated_and_saved_changes_no_bit_of_what_it_learns(optimizer, tmp_path):
    rare = hasten.train(free_job(optimizer=optimizer, valid=None), receivers=[])
    often = hasten.train(
        free_job(optimizer=optimizer, evaluate_every=1),
        run_dir=tmp_path / "run",
        saving=hasten.Saving(every_steps=1),
        receivers=[],
    )
    assert equal(often.weights, rare.weights)


@pytest.mark.trap(36)
@OPTIMIZERS
def test_a_resumed_run_is_the_undisturbed_one_to_the_bit(optimizer, tmp_path):
    job, saving = free_job(optimizer=optimizer, evaluate_every=2), hasten.Saving(every_steps=5, keep_every=5)
    whole, resumed = tmp_path / "whole", tmp_path / "resumed"
    wanted = hasten.train(job, run_dir=whole, saving=saving, receivers=[])
    shutil.copytree(whole, resumed)  # as if it had been killed after its fifth step
    (resumed / "model.safetensors").unlink()
    newest = checkpoints_of(resumed)[0]
    assert newest.step == 10
    shutil.rmtree(newest.path)
    found = hasten.resume(job, run_dir=resumed, receivers=[])
    assert equal(found.weights, wanted.weights)
    assert evaluations(resumed) == evaluations(whole)
    assert (resumed / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()


def test_a_checkpoint_gives_out_the_weights_of_evaluation_mode(tmp_path):
    saving = hasten.Saving(every_steps=5, keep_every=5)
    hasten.train(free_job(), run_dir=tmp_path / "run", saving=saving, receivers=[])
    for step, (_, wanted) in zip((5, 10), plain_loop(), strict=True):
        export_weights(tmp_path / "run", tmp_path / f"{step}.safetensors", step)
        close(safetensors.torch.load_file(tmp_path / f"{step}.safetensors"), wanted)
    assert (tmp_path / "10.safetensors").read_bytes() == (tmp_path / "run" / "model.safetensors").read_bytes()


def test_early_stopping_keeps_the_best_weights_of_evaluation_mode():
    stop = hasten.EarlyStopping("loss", patience=9)
    job = free_job(optimizer=lambda params: ScheduleFreeSGD(params, lr=5.0), epochs=8, stop=stop)
    result = hasten.train(job, receivers=[])
    wanted = plain_loop(job.optimizer, 8)
    best = min(range(8), key=lambda number: wanted[number][0])
    assert best == 5
    assert result.kept_step == 5 * (best + 1)
    close(result.weights, wanted[best][1])


def test_training_weights_come_back_after_an_evaluation_that_fails():
    def loss(model: nn.Module, batch: Any) -> Tensor:
        if not model.training:
            raise ValueError("cannot be evaluated")
        return functional.cross_entropy(model(batch[0]), batch[1])

    with hasten.prepare(free_job(loss=loss)) as run, hasten.prepare(free_job()) as undisturbed:
        for batch, other in zip(run.batches(), undisturbed.batches(), strict=True):
            run.step(batch)
            undisturbed.step(other)
            with pytest.raises(ValueError, match="cannot be evaluated"):
                run.evaluate()
        assert equal(run.model.state_dict(), undisturbed.model.state_dict())


@pytest.mark.proof
def test_16_bit_weights_are_evaluated_and_kept_in_evaluation_mode_too():
    (rows, labels) = small_job().train
    job = free_job(
        model=lambda: model(torch.bfloat16), train=(rows.bfloat16(), labels), valid=(rows.bfloat16(), labels)
    )
    result = hasten.train(job, receivers=[])
    for name, each in plain_loop()[-1][1].items():
        assert result.weights[name].dtype == torch.bfloat16
        torch.testing.assert_close(result.weights[name].float(), each, rtol=0.05, atol=0.02)
    with hasten.prepare(job) as run:
        for batch in run.batches():
            run.step(batch)
        trained = copy.deepcopy(run.model.state_dict())
        run.evaluate()
        assert equal(run.model.state_dict(), trained)
        assert equal(run.weights(), result.weights)
        assert not equal(run.weights(), trained)


def test_an_average_is_of_the_weights_of_training():
    result = hasten.train(free_job(average=hasten.ExponentialAverage(0.8)), receivers=[])
    with hasten.prepare(free_job()) as run:
        mean = dict[str, Tensor]()
        for batch in run.batches():
            run.step(batch)
            now = copy.deepcopy(run.model.state_dict())
            mean = {name: mean.get(name, each).lerp(each, 0.2) for name, each in now.items()}
    close(result.weights, mean)


def test_a_range_test_and_a_step_on_stand_ins_train_in_training_mode():
    assert len(range_test(free_job(), lowest=1e-3, highest=1, steps=10).losses) == 10
    kept = state_bytes(free_job(), nn.Linear(6, 3), OptimizerOptions())
    assert kept == {"weight": 4 * 18, "bias": 4 * 3}


def test_the_gradients_and_updates_of_a_plan_are_judged_in_training_mode(tmp_path):
    trials = [Trial(free_job(), plan, "job") for plan in (Plan(), make_plan(microbatch=5))]
    try:
        kept = keep_references(trials[0], str(tmp_path), 0, 4)
        assert kept["refused"] == ""
        found = judge_gradients_of(trials[1], str(tmp_path), kept)
        assert found["passes"], found["reason"]
    finally:
        for each in trials:
            each.close()


def test_what_has_only_one_of_the_two_methods_is_left_alone():
    class Halfway(torch.optim.SGD):
        def eval(self) -> None:
            raise AssertionError("called")

    hasten.train(free_job(optimizer=lambda params: Halfway(params, lr=0.1)), receivers=[])
