"""A wrong job is refused when it is made, in one line that names the field, what it was and what to write."""

from functools import partial

import pytest
import torch
from torch import nn
from torchmetrics.classification import MulticlassAccuracy

from hasten.errors import JobError
from hasten.facts.job import Best, EarlyStopping, EqualAverage, ExponentialAverage, Schedule
from support import small_job

WRONG = [
    ("model", nn.Linear(2, 2), "Linear", "lambda: MyModel()"),
    ("model", lambda width: nn.Linear(width, 2), "no argument", "model="),
    (
        "loss",
        nn.CrossEntropyLoss(),
        "torch.nn.CrossEntropyLoss(…), and a job",
        "supervised(torch.nn.CrossEntropyLoss(…))",
    ),
    (
        "loss",
        nn.MSELoss,
        "is torch.nn.MSELoss(…), and a job's loss takes (model, batch)",
        "supervised(torch.nn.MSELoss(…))",
    ),
    ("loss", nn.TripletMarginLoss(), "is torch.nn.TripletMarginLoss(…)", "def loss(model, batch)"),
    ("loss", nn.functional.ctc_loss, "is torch.nn.functional.ctc_loss", "def loss(model, batch)"),
    (
        *("loss", partial(nn.functional.nll_loss, ignore_index=0)),
        *("partial(torch.nn.functional.nll_loss, …)", "supervised(functools.partial(torch.nn.functional.nll_loss, …))"),
    ),
    ("eval_loss", nn.functional.mse_loss, "is torch.nn.functional.mse_loss", "eval_loss=hasten.supervised"),
    ("loss", lambda batch: None, "2 arguments", "loss="),
    ("optimizer", torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1), "SGD", "lambda params"),
    ("optimizer", 0.1, "0.1 (float)", "lambda params"),
    ("parameters", ["weight"], "list", "function of the model"),
    ("schedule", 0.1, "float", "lambda optimizer, total_steps"),
    ("collate", "stack", "stack", "function"),
    ("on_bad_sample", "ignore", "'ignore' (str)", 'write "stop" or "replace"'),
    ("train", None, "None", "data set"),
    ("batch_size", 0, "0 (int)", "1 or more"),
    ("batch_size", True, "True (bool)", "whole number"),
    ("epochs", None, "neither is max_steps", "epochs=20"),
    ("evaluate_every", 0, "0 (int)", "1 or more"),
    ("log_every", None, "None", "1 or more"),
    ("clip_norm", -1.0, "-1.0 (float)", "0 or more"),
    ("clip_norm", float("nan"), "nan", "0 or more"),
    ("seed", -1, "-1 (int)", "0 to"),
    ("stop", 3, "3 (int)", "EarlyStopping"),
    ("stop", EarlyStopping(), "no valid data", "valid="),
    ("keep", "last", "'last' (str)", 'write "best"'),
    ("keep", "best", "no valid data", "remove keep="),
    ("average", 0.9, "0.9 (float)", "ExponentialAverage"),
    ("metrics", MulticlassAccuracy(3), "MulticlassAccuracy", "dictionary"),
    ("metrics", {"accuracy": len}, "'accuracy'", "lambda prediction, target"),
    ("metrics", {"accuracy": MulticlassAccuracy}, "the class MulticlassAccuracy", "update, compute and reset"),
    ("metrics", {"loss": MulticlassAccuracy(3)}, '"loss"', "another name"),
    ("metrics", {"accuracy": MulticlassAccuracy(3)}, "no valid data", "valid="),
    ("evaluate_every", 100, "is 100 (int), but there is no valid data", "remove evaluate_every="),
]


@pytest.mark.parametrize(
    ("field", "value", "was", "write"), WRONG, ids=[f"{row[0]}-{i}" for i, row in enumerate(WRONG)]
)
def test_a_wrong_field_is_named_with_what_it_was_and_what_to_write(field, value, was, write):
    with pytest.raises(JobError) as refusal:
        small_job(**{field: value})
    error = refusal.value
    assert error.field == field
    assert was in error.what
    assert write in error.fix
    assert "\n" not in error.what
    assert error.exit_code == 2
    assert str(error).startswith(f"Job.{field}: ")


def test_a_stopping_rule_for_an_unknown_metric_lists_the_known_ones():
    rows = torch.randn(4, 6), torch.zeros(4, dtype=torch.long)
    with pytest.raises(JobError, match="not a metric of the job") as refusal:
        small_job(stop=EarlyStopping("acuracy"), valid=rows, metrics={"accuracy": MulticlassAccuracy(3)})
    assert refusal.value.fix == "write one of: loss, accuracy"
    with pytest.raises(JobError, match=r"Job\.keep: watches 'acuracy'"):
        small_job(keep=Best("acuracy"), valid=rows, metrics={"accuracy": MulticlassAccuracy(3)})


def test_the_best_is_that_of_the_loss_and_what_keeps_comes_before_what_stops():
    rows = torch.randn(4, 6), torch.zeros(4, dtype=torch.long)
    assert small_job(keep="best", valid=rows).keep == Best("loss")
    assert small_job(keep="best", stop=EarlyStopping(), valid=rows).keeps == Best("loss")
    assert small_job(stop=EarlyStopping(), valid=rows).keeps == EarlyStopping()
    assert small_job().keeps is None


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: EarlyStopping(patience=0), "stop"),
        (lambda: EarlyStopping(patience="3"), "stop"),  # type: ignore[arg-type]
        (lambda: EarlyStopping(mode="best"), "stop"),  # type: ignore[arg-type]
        (lambda: EarlyStopping(min_delta=-1), "stop"),
        (lambda: EarlyStopping(min_delta=float("nan")), "stop"),
        (lambda: Best(mode="best"), "keep"),  # type: ignore[arg-type]
        (lambda: ExponentialAverage(1.0), "average"),
        (lambda: EqualAverage(1.0), "average"),
        (lambda: Schedule(0.1, "step"), "schedule"),  # type: ignore[arg-type]
        (lambda: Schedule(lambda optimizer: None, "batch"), "schedule"),  # type: ignore[arg-type]
    ],
)
def test_the_records_inside_a_job_are_checked_as_well(make, field):
    with pytest.raises(JobError) as refusal:
        make()
    assert refusal.value.field == field
    assert refusal.value.fix


def test_optional_arguments_of_the_jobs_functions_are_allowed():
    job = small_job(
        model=lambda width=3: nn.Linear(6, width), optimizer=lambda params, lr=0.1: torch.optim.SGD(params, lr)
    )
    assert job.model().out_features == 3


LOSSES = [name for name in dir(nn.functional) if name.endswith(("_loss", "cross_entropy")) and not name.startswith("_")]


@pytest.mark.parametrize("name", LOSSES)
def test_every_loss_function_of_torch_is_refused_as_the_loss_of_a_job(name):
    with pytest.raises(JobError, match=rf"is torch\.nn\.functional\.{name}, and a job's loss takes \(model, batch\)"):
        small_job(loss=getattr(nn.functional, name))
