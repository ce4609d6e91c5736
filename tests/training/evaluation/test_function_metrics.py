"""Metrics that are plain functions are given all predictions and targets of an evaluation at once."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import hasten
from hasten.errors import JobError
from hasten.training.failures.as_failure import as_failure
from support import small_job


def accuracy(prediction: Tensor, target: Tensor) -> Tensor:
    return (prediction.argmax(1) == target).float().mean()


def evaluated(function: Any, batch_size: int = 9, **changes: Any) -> dict[str, float]:
    """Of the first evaluation, whose batches differ in size."""
    fields = {"loss": hasten.supervised(functional.cross_entropy), "valid": small_job().train, "batch_size": batch_size}
    with hasten.prepare(small_job(**{**fields, "metrics": {"judged": function}, **changes})) as run:
        return dict(run.evaluate().results)


def test_a_function_is_given_the_whole_evaluation_in_its_order():
    given = list[tuple[Tensor, Tensor]]()

    def last(prediction: Tensor, target: Tensor) -> float:
        given.append((prediction, target))
        return accuracy(prediction, target).item()

    valid = small_job().train
    results = [evaluated(last, size)["judged"] for size in (9, len(valid[1]))]
    assert results[0] == results[1]
    (prediction, target), whole = given
    assert torch.equal(target, valid[1])
    torch.testing.assert_close(prediction, whole[0])
    assert not prediction.requires_grad


@pytest.mark.parametrize(
    "function", [accuracy, nn.NLLLoss(), lambda *both: accuracy(*both)], ids=["def", "module", "*"]
)
def test_whatever_is_called_with_prediction_and_target_is_taken(function: Any):
    assert isinstance(evaluated(function)["judged"], float)


def test_sixteen_bit_predictions_arrive_on_the_host_in_float32():
    def loss(model: nn.Module, batch: Any) -> hasten.Loss:
        prediction = model(batch[0])
        total = functional.cross_entropy(prediction, batch[1], reduction="sum")
        return hasten.Loss(total, len(batch[1]), prediction=prediction.bfloat16(), target=batch[1])

    def is_float32(prediction: Tensor, target: Tensor) -> bool:
        return prediction.dtype is torch.float32 and prediction.is_cpu and target.dtype is torch.int64

    assert evaluated(is_float32, loss=loss)["judged"] == 1.0


def test_tuples_and_dictionaries_of_tensors_keep_their_form():
    def loss(model: nn.Module, batch: Any) -> hasten.Loss:
        prediction = model(batch[0])
        total = functional.cross_entropy(prediction, batch[1], reduction="sum")
        return hasten.Loss(total, len(batch[1]), prediction={"scores": (prediction, batch[1])})

    def found(prediction: Any, target: None) -> Tensor:
        assert target is None
        return accuracy(*prediction["scores"])

    assert evaluated(found, loss=loss)["judged"] == evaluated(accuracy)["judged"]


@pytest.mark.parametrize(
    "form",
    [lambda rows: rows.sum(), lambda rows: rows[:, None].expand(-1, len(rows)), lambda rows: rows.tolist()],
    ids=["no dimension", "another length in each batch", "a list"],
)
def test_predictions_that_cannot_be_joined_are_refused_with_what_to_write(form: Any):
    def loss(model: nn.Module, batch: Any) -> hasten.Loss:
        rows = functional.cross_entropy(model(batch[0]), batch[1], reduction="none")
        return hasten.Loss(rows.sum(), len(rows), prediction=form(rows.detach()), target=batch[1])

    with pytest.raises(JobError, match="cannot be joined") as refusal:
        evaluated(accuracy, loss=loss)
    assert refusal.value.field == "metrics"
    assert "update, compute and reset" in refusal.value.fix


def test_what_a_function_raises_is_of_the_users_metric():
    def broken(prediction: Tensor, target: Tensor) -> float:
        raise ValueError("no class")

    with pytest.raises(ValueError, match="no class") as raised:
        evaluated(broken)
    failure = as_failure(raised.value)
    assert failure is not None
    assert failure.exit_code == 10


def test_an_error_in_a_library_names_what_the_metric_was_given():
    """scikit-learn's own words do not say that these are scores, and no labels."""
    sklearn = pytest.importorskip("sklearn.metrics")
    with pytest.raises(ValueError, match="continuous") as raised:
        evaluated(sklearn.accuracy_score)
    rows = len(small_job().train[1])
    assert any(f"'judged', on (float32 [{rows}, " in note for note in raised.value.__notes__)


def test_a_function_that_writes_to_what_it_is_given_changes_no_other():
    def writes(prediction: Tensor, target: Tensor) -> float:
        return prediction.zero_().sum().item()

    results = evaluated(accuracy, metrics={"first": writes, "judged": accuracy})
    assert results["judged"] == evaluated(accuracy)["judged"] != 0


def test_an_array_of_one_number_is_a_number():
    assert evaluated(lambda prediction, target: target[:1].numpy() * 0.0)["judged"] == 0


@pytest.mark.parametrize("several", [{"a": 1.0, "b": 2.0}, (0.5, 0.5), [1.0, 2.0]], ids=["dict", "tuple", "list"])
def test_several_numbers_are_refused_with_what_to_write(several: Any):
    with pytest.raises(JobError, match=r"'judged' computed .* not one number") as refusal:
        evaluated(lambda prediction, target: several)
    assert "give several metrics" in refusal.value.fix


def test_a_function_with_other_arguments_is_refused_with_its_signature():
    """torchmetrics.functional.accuracy, for one, must be given its task."""

    def needs_task(preds: Tensor, target: Tensor, task: str) -> Tensor: ...

    with pytest.raises(JobError, match=r"'judged' cannot be called with 2 arguments: it takes .*task") as refusal:
        small_job(valid=small_job().train, metrics={"judged": needs_task})
    assert refusal.value.fix == 'metrics={"judged": lambda prediction, target: ...}'


def test_a_function_that_takes_y_true_is_given_the_target_first():
    """As all functions of scikit-learn do."""
    sklearn = pytest.importorskip("sklearn.metrics")

    def loss(model: nn.Module, batch: Any) -> hasten.Loss:
        prediction, target = model(batch[0])[:, 0], batch[1].float()
        return hasten.Loss((prediction - target).square().sum(), len(target), prediction=prediction, target=target)

    found = evaluated(sklearn.r2_score, loss=loss)
    assert found["judged"] == pytest.approx(1 - found["loss"] / small_job().train[1].float().var(correction=0).item())
    top = evaluated(lambda prediction, target: sklearn.f1_score(target, prediction.argmax(1), average="micro"))
    assert top == pytest.approx(evaluated(accuracy))


def test_it_is_kept_by_a_function_whose_direction_is_given():
    keep = hasten.Best("judged", mode="max")
    result = hasten.train(
        small_job(
            loss=hasten.supervised(functional.cross_entropy),
            valid=small_job().train,
            metrics={"judged": accuracy},
            keep=keep,
        ),
        receivers=[],
    )
    assert set(result.results) == {"loss", "judged"}
    with pytest.raises(JobError, match="does not say whether higher is better"):
        evaluated(accuracy, keep=hasten.Best("judged"))
