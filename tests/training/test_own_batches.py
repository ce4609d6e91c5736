"""Jobs whose DataLoader has a batch sampler of its own: their length, their batch size, and what a plan may say."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.optim.lr_scheduler import OneCycleLR
from torch.utils.data import DataLoader, TensorDataset

import hasten
from hasten.errors import DataFailed, JobError, PlanError
from hasten.facts.events import Started, Trained
from hasten.techniques import ALL
from hasten.techniques.contract import No
from support import laptop, setup_of, small_job
from support.data.loaders import Buckets
from support.training.collected_events import Collected

ROWS, LABELS = (part[:22] for part in small_job().train)
STEPS = len(Buckets.SIZES)


def loader_of(batch_sampler: Any = None, **options: Any) -> DataLoader[Any]:
    return DataLoader(TensorDataset(ROWS, LABELS), batch_sampler=batch_sampler or Buckets(), **options)


def job_of(batch_sampler: Any = None, **changes: Any) -> hasten.Job:
    return small_job(**({"train": loader_of(batch_sampler), "batch_size": None, "log_every": 1} | changes))


class Growing(Buckets):
    """One batch more in every epoch."""

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Any:
        yield from super().__iter__()
        yield from [[0, 1]] * self.epoch


def test_a_run_takes_one_step_for_each_list_and_its_schedule_ends_with_it():
    totals, events = list[int](), Collected()

    def schedule(optimizer: Any, total_steps: int) -> OneCycleLR:
        totals.append(total_steps)
        return OneCycleLR(optimizer, 0.1, total_steps, cycle_momentum=False)

    result = hasten.train(job_of(schedule=schedule, valid=loader_of()), receivers=[events])
    assert (totals, result.steps, result.epochs) == ([2 * STEPS], 2 * STEPS, 2)
    (started,) = [each for each in events.events if isinstance(each, Started)]
    assert (started.samples, started.batch_size) == (22, max(Buckets.SIZES))
    assert sum(isinstance(each, Trained) for each in events.events) == 2 * STEPS


def test_the_loss_of_a_step_is_the_mean_over_its_own_list():
    job = job_of(epochs=1)
    with hasten.prepare(job) as run:
        sizes = [len(labels) for _, labels in run.epoch_batches()]
    with hasten.prepare(job, hasten.make_plan(microbatch=2)) as run:
        parts = [len(labels) for _, labels in run.epoch_batches()]
    assert sorted(sizes) == sorted(Buckets.SIZES)
    assert max(parts) == 2
    whole, split = (hasten.train(job, plan).weights["weight"] for plan in (None, hasten.make_plan(microbatch=2)))
    torch.testing.assert_close(split, whole)


def test_an_evaluation_by_a_batch_sampler_is_that_of_its_samples():
    by_lists, by_rows = (hasten.train(job_of(valid=valid)).results["loss"] for valid in (loader_of(), (ROWS, LABELS)))
    assert by_lists == pytest.approx(by_rows, rel=1e-6)


def test_epochs_of_other_lengths_are_refused_unless_the_run_ends_by_its_steps(tmp_path):
    with pytest.raises(DataFailed, match="draws 7 batches in epoch 2, and 6 in epoch 1"):
        hasten.train(job_of(Growing()))
    job = job_of(Growing(), epochs=None, max_steps=17)
    whole = hasten.train(job)
    assert (whole.steps, whole.epochs) == (17, 2)
    hasten.train(replace(job, max_steps=9), run_dir=tmp_path / "run")
    resumed = hasten.resume(job, run_dir=tmp_path / "run", allow_change=["max_steps"])
    assert (resumed.steps, resumed.epochs) == (17, 2)
    assert resumed.weights["weight"].equal(whole.weights["weight"])


@pytest.mark.parametrize("choices", [{"in_memory": "host"}, {"loader_workers": 2, "prefetch": 3}], ids=str)
def test_how_the_lists_are_read_changes_nothing(choices):
    listed = DataLoader([*zip(ROWS, LABELS, strict=True)], batch_sampler=Buckets())
    plain, read = (hasten.train(job_of(train=listed), plan) for plan in (None, hasten.make_plan(**choices)))
    assert read.weights["weight"].equal(plain.weights["weight"])


def test_another_batch_size_is_refused_by_the_plan_and_not_tried():
    with pytest.raises(PlanError, match="change the DataLoader's batch_sampler") as caught:
        hasten.train(job_of(), hasten.make_plan(batch_size=16))
    assert "batch_size" in caught.value.where
    technique = next(each for each in ALL if each.name == "batch_size")
    setup = replace(setup_of(torch.nn.Linear(6, 3), (ROWS, LABELS), laptop(), train=loader_of(), batch_size=None))
    setup.batch_size = 6
    assert technique.applies(setup) == No("the DataLoader's batch_sampler sets the batch size")


def test_drop_last_of_the_job_is_refused():
    with pytest.raises(JobError, match="drop_last: is True"):
        hasten.train(job_of(drop_last=True))
