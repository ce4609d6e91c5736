"""The whole run, seen through its events and its result."""

import math
from itertools import count

import pytest
import torch
from torch import nn
from torch.nn import functional
from torchmetrics.classification import MulticlassAccuracy

from hasten.entry import prepare, train
from hasten.errors import NonFinite
from hasten.facts.events import Evaluated, Finished, Started, Trained
from hasten.facts.job import Best, EarlyStopping, Schedule
from hasten.facts.plan import make_plan
from hasten.training.loop import train_run
from hasten.training.step_parts.supervised import supervised
from support import small_job
from support.training.collected_events import Collected


def events_of(job, plan=None, **arguments):
    collected = Collected()
    result = train(job, plan, receivers=[collected], **arguments)
    return result, list(collected.events)


def of_kind(events, kind):
    return [event for event in events if isinstance(event, kind)]


def judged_job(**changes):
    job = small_job()
    return small_job(**({"loss": supervised(functional.cross_entropy), "valid": job.train, "log_every": 2} | changes))


def test_a_run_begins_with_what_it_is_and_ends_with_what_it_gave():
    result, events = events_of(judged_job(metrics={"accuracy": MulticlassAccuracy(3)}), name="small.py:job")
    assert isinstance(events[0], Started)
    assert (events[0].job, events[0].total_steps, events[0].total_epochs) == ("small.py:job", 10, 2)
    assert isinstance(events[-1], Finished)
    assert events[-1].results == result.results
    assert set(result.results) == {"loss", "accuracy"}
    assert result.reason == "the planned run is complete"
    assert (result.steps, result.epochs, result.kept_step) == (10, 2, 10)


@pytest.mark.trap(6)
def test_a_log_line_is_the_mean_over_all_items_since_the_last():
    job = small_job(epochs=1, log_every=3, batch_size=9)
    _, events = events_of(job)
    with prepare(job) as run:
        losses = [(run.step(batch).item(), len(batch[1])) for batch in run.batches()]
    lines = of_kind(events, Trained)
    assert [line.step for line in lines] == [3, 5]
    for line, windows in zip(lines, (losses[:3], losses[3:]), strict=True):
        wanted = sum(mean * items for mean, items in windows) / sum(items for _, items in windows)
        assert line.loss == pytest.approx(wanted, rel=1e-6)


def test_evaluations_come_at_the_end_of_every_epoch():
    _, events = events_of(judged_job(epochs=3))
    assert [(event.step, event.epoch) for event in of_kind(events, Evaluated)] == [(5, 0), (10, 1), (15, 2)]


class Worsening(nn.Module):
    """A model whose evaluations get worse with every one."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))
        self.register_buffer("evaluations", torch.zeros(()))

    def forward(self, features):
        if not self.training:
            self.evaluations += 1
        return features[:, :3] * self.scale + self.evaluations.pow(2) * torch.tensor([-1.0, 0.0, 1.0])


class Numbered:
    """A metric that rises with every evaluation."""

    evaluations = 0

    def update(self, prediction, target): ...

    def reset(self): ...

    def compute(self):
        self.evaluations += 1
        return self.evaluations


@pytest.mark.trap(46)
def test_an_early_stop_keeps_the_best_weights():
    job = judged_job(model=Worsening, stop=EarlyStopping("loss", patience=2), epochs=30, batch_size=40)
    result, events = events_of(job)
    evaluations = of_kind(events, Evaluated)
    assert [event.best for event in evaluations] == [True, False, False]
    assert result.reason == "stopped early"
    assert result.kept_step == 1
    assert result.results == evaluations[0].results
    assert result.weights["evaluations"] == 1


def test_a_run_that_keeps_the_best_trains_to_its_end():
    result, events = events_of(judged_job(model=Worsening, keep="best", epochs=4, batch_size=40))
    assert [event.best for event in of_kind(events, Evaluated)] == [True, False, False, False]
    assert (result.reason, result.steps, result.kept_step) == ("the planned run is complete", 4, 1)
    assert result.results == of_kind(events, Evaluated)[0].results
    assert result.weights["evaluations"] == 1
    assert of_kind(events, Finished)[0].kept_step == 1


def test_stop_ends_a_run_by_one_result_and_keep_chooses_its_weights_by_another():
    changes = {"metrics": {"number": Numbered()}, "keep": Best("number", mode="max"), "epochs": 30, "batch_size": 40}
    job = judged_job(model=Worsening, stop=EarlyStopping("loss", patience=2), **changes)
    result, events = events_of(job)
    assert [event.best for event in of_kind(events, Evaluated)] == [True, True, True]
    assert (result.reason, result.kept_step, result.results["number"]) == ("stopped early", 3, 3.0)


def test_a_plateau_schedule_follows_the_evaluations():
    def plateau(optimizer):
        return torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.1, patience=0)

    job = judged_job(model=Worsening, schedule=Schedule(plateau, "evaluation"), epochs=3, batch_size=40, log_every=1)
    _, events = events_of(job)
    assert [line.learning_rate for line in of_kind(events, Trained)] == pytest.approx([0.1, 0.1, 0.01])


@pytest.mark.parametrize("log_every", [1, 2, 5])
def test_a_line_logs_the_rate_of_its_last_step_at_the_end_of_an_epoch_as_well(log_every):
    def halved(optimizer):
        return torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)

    job = judged_job(schedule=Schedule(halved, "epoch"), epochs=3, batch_size=10, log_every=log_every)
    _, events = events_of(job)
    logged = {line.step: line.learning_rate for line in of_kind(events, Trained)}
    assert logged == pytest.approx({step: 0.1 * 0.5 ** ((step - 1) // 4) for step in logged})


def test_log_lines_that_wait_for_their_loss_are_sent_when_the_run_fails():
    steps = count(1)

    def loss(model, batch):
        mean = functional.cross_entropy(model(batch[0]), batch[1])
        return mean * math.nan if next(steps) == 8 else mean

    collected = Collected()
    with pytest.raises(NonFinite, match="step 8"):
        train(small_job(loss=loss, log_every=2), make_plan(device_metrics=50), receivers=[collected])
    lines = of_kind(collected.events, Trained)
    assert [line.step for line in lines] == [2, 4, 6]
    assert all(math.isfinite(line.loss) for line in lines)


def test_a_receiver_that_cannot_take_them_does_not_hide_why_the_run_failed():
    class Full(Collected):
        def log(self, event):
            if isinstance(event, Trained):
                raise OSError("the disk is full")

    def loss(model, batch):
        return functional.cross_entropy(model(batch[0]), batch[1]) * (math.nan if next(steps) == 8 else 1.0)

    steps = count(1)
    plan = make_plan(device_metrics=50)
    with pytest.raises(NonFinite, match="step 8") as failure, prepare(small_job(loss=loss, log_every=2), plan) as run:
        train_run(run, Full())
    assert failure.value.__notes__ == ["log lines and notices that waited are lost: OSError: the disk is full"]


def test_updates_that_were_skipped_are_made_up_for_and_no_more():
    calls = count(1)

    def loss(model, batch):
        return functional.cross_entropy(model(batch[0]), batch[1]) * (math.inf if next(calls) in (1, 3) else 1.0)

    collected = Collected()
    with prepare(small_job(loss=loss, epochs=None, max_steps=4)) as run:
        run.built.step.window.scaler = torch.amp.GradScaler("cpu")
        result = train_run(run, collected)
    assert (result.steps, result.skipped_updates) == (6, 2)


@pytest.mark.trap(10)
@pytest.mark.parametrize(("at", "late"), [(4, False), (5, True)])
def test_a_skip_explains_a_loss_that_is_not_finite_also_on_the_step_that_is_logged(at, late, monkeypatch):
    monkeypatch.setattr("hasten.training.step.decides_on_device", lambda device, optimizers: late)
    calls = count(1)

    def loss(model, batch):
        mean = functional.cross_entropy(model(batch[0]), batch[1])
        return mean * float("inf") if next(calls) == at else mean

    job = small_job(
        loss=loss, optimizer=lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9, fused=True), log_every=5
    )
    with prepare(job) as run:
        run.built.step.window.scaler = torch.amp.GradScaler("cpu")  # fp16 itself takes minutes a step on a CPU
        result = train_run(run, Collected())
    assert (result.steps, result.skipped_updates) == (10, 1)
    assert all(weight.isfinite().all() for weight in result.weights.values())


@pytest.mark.parametrize("log_every", [1, 2, 1000])
def test_a_run_ends_and_evaluates_where_it_should_however_seldom_it_logs(log_every):
    result, events = events_of(judged_job(epochs=3, max_steps=13, evaluate_every=4, log_every=log_every))
    assert result.steps == 13
    assert [event.step for event in of_kind(events, Evaluated)] == [4, 8, 12, 13]
    assert of_kind(events, Trained)[-1].step == 13


def test_a_run_folder_holds_plan_environment_metrics_and_weights(tmp_path):
    result, _ = events_of(judged_job(), make_plan(accumulation=2), run_dir=tmp_path / "run")
    from safetensors.torch import load_file

    names = {path.name for path in (tmp_path / "run").iterdir()}
    made = {"asked.json", "plan.toml", "environment.json", "metrics.jsonl", "checkpoints", "model.safetensors"}
    assert names == made
    weights = load_file(tmp_path / "run" / "model.safetensors")
    assert all(torch.equal(result.weights[key], value) for key, value in weights.items())
