"""hasten.evaluate: the numbers of the run's own evaluation, from a file of its weights."""

from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import nn
from torchmetrics.classification import MulticlassAccuracy

import hasten
from hasten.errors import HastenError
from hasten.training.evaluation.evaluate_weights import evaluate_weights
from support import small_job

ROWS = torch.randn(41, 6, generator=torch.Generator().manual_seed(2))
LABELS = torch.randint(0, 3, (41,), generator=torch.Generator().manual_seed(3))


def noisy_loss(model: nn.Module, batch: Any) -> hasten.Loss:
    scores = model(batch[0] + torch.randn_like(batch[0]))
    total = nn.functional.cross_entropy(scores, batch[1], reduction="sum")
    return hasten.Loss(total, len(batch[1]), prediction=scores, target=batch[1])


def judged_job(**changes: Any) -> hasten.Job:
    fields = {"loss": noisy_loss, "valid": (ROWS, LABELS), "metrics": {"accuracy": MulticlassAccuracy(3)}}
    return small_job(**(fields | changes))


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    path = tmp_path / "model.safetensors"
    safetensors.torch.save_file(nn.Linear(6, 3).state_dict(), path)
    return path


@pytest.mark.parametrize("plan", [None, hasten.make_plan(precision="bf16", in_memory="host")], ids=["baseline", "bf16"])
def test_the_numbers_are_those_of_the_runs_last_evaluation_to_the_bit(tmp_path: Path, plan: hasten.Plan | None):
    last = hasten.train(judged_job(), plan, run_dir=tmp_path / "run", receivers=[]).results
    file = tmp_path / "run" / "model.safetensors"
    assert hasten.evaluate(judged_job(), file, plan).results == last
    assert {*last} == {"loss", "accuracy"}
    assert hasten.evaluate(judged_job(seed=7), file, plan).results != last  # the noise is drawn by Job.seed


def no_optimizer(params: Any) -> torch.optim.Optimizer:
    raise AssertionError("an optimizer was built")


class Unreadable:
    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> Any:
        raise AssertionError("a sample of the training data was read")


def test_no_optimizer_is_built_and_no_training_sample_is_read(weights: Path):
    plan = hasten.make_plan(in_memory="host")
    found = hasten.evaluate(judged_job(train=Unreadable(), optimizer=no_optimizer), weights, plan, batch_size=7)
    assert found.batch_size == 7


def test_eval_loss_and_the_training_data_are_evaluated_as_asked(weights: Path):
    job = judged_job(eval_loss=lambda model, batch: hasten.Loss(batch[0].sum(), 1), metrics={})
    rows = job.train[0]  # type: ignore[index]
    assert hasten.evaluate(job, weights, data="train", batch_size=40).results == {"loss": rows.sum().item()}
    assert hasten.evaluate(job, weights, batch_size=41).results == {"loss": ROWS.sum().item()}


@pytest.mark.parametrize(
    ("job", "options", "says"),
    [
        ({"valid": None}, {}, "valid"),
        ({}, {"data": "test"}, "'test'"),
        ({}, {"batch_size": 0}, "batch_size: is 0"),
        ({"model": lambda: nn.Linear(6, 4)}, {}, "these are not the weights of this model"),
    ],
)
def test_what_cannot_be_evaluated_is_refused_in_one_sentence(weights: Path, job: Any, options: Any, says: str):
    with pytest.raises(HastenError, match=says) as caught:
        hasten.evaluate(judged_job(**job), weights, **options)
    assert caught.value.fix


def test_a_loss_that_raises_names_the_data(weights: Path):
    with pytest.raises(IndexError) as caught:
        hasten.evaluate(judged_job(loss=lambda model, batch: batch[5]), weights, data="train")
    assert "in an evaluation: samples 0 to 7 of Job.train" in caught.value.__notes__


def test_declared_state_which_is_not_in_the_file_is_reported(weights: Path):
    job = judged_job(state={"teacher": nn.Linear(6, 3)})
    assert evaluate_weights(job, weights, None).notices == (
        "Job.state['teacher'] is as the job builds it: it is not in a file of weights",
    )
    assert not evaluate_weights(judged_job(), weights, None).notices
