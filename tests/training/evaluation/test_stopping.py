"""Early stopping counts its patience in evaluations; of all evaluations, the best is kept. Both survive a resume."""

import math

import pytest
from torchmetrics.classification import MulticlassAccuracy
from torchmetrics.regression import MeanSquaredError

from hasten.errors import JobError, NonFinite
from hasten.facts.job import Best, EarlyStopping
from hasten.training.evaluation.stopping import BestResult, Stopping


def observed(stopping: Stopping | BestResult, values: list[float], metric: str = "loss") -> list[bool]:
    return [stopping.observe({metric: value}, step) for step, value in enumerate(values, start=10)]


def test_patience_counts_evaluations_without_improvement():
    stopping = Stopping(EarlyStopping("loss", patience=2), {})
    assert observed(stopping, [3.0, 2.0, 2.5]) == [True, True, False]
    assert not stopping.over
    assert observed(stopping, [2.0]) == [False]
    assert stopping.over
    assert (stopping.best.value, stopping.best.step) == (2.0, 11)


def test_the_metric_itself_says_which_way_is_better():
    rising = Stopping(EarlyStopping("accuracy"), {"accuracy": MulticlassAccuracy(3)})
    assert observed(rising, [0.5, 0.4, 0.6], "accuracy") == [True, False, True]
    falling = Stopping(EarlyStopping("error"), {"error": MeanSquaredError()})
    assert observed(falling, [0.5, 0.4, 0.6], "error") == [True, True, False]


def test_a_metric_without_a_direction_is_refused_with_both_remedies():
    class Undirected(MulticlassAccuracy):
        higher_is_better = None

    with pytest.raises(JobError, match="higher is better") as refusal:
        Stopping(EarlyStopping("accuracy"), {"accuracy": Undirected(3)})
    assert 'mode="min"' in refusal.value.fix
    with pytest.raises(JobError, match=r"Job\.keep: 'accuracy' does not say") as refusal:
        BestResult(Best("accuracy"), {"accuracy": Undirected(3)})
    assert refusal.value.fix == 'write Best("accuracy", mode="min") or mode="max"'


def test_the_best_result_is_the_first_of_equal_ones_and_survives_a_resume():
    best, resumed = BestResult(Best("accuracy", mode="max"), {}), BestResult(Best("accuracy", mode="max"), {})
    assert observed(best, [0.5, 0.6, 0.6], "accuracy") == [True, True, False]
    resumed.load_state_dict(best.state_dict())
    assert (resumed.value, resumed.step) == (0.6, 11)
    assert observed(resumed, [0.6, 0.7], "accuracy") == [False, True]


@pytest.mark.trap(51)
def test_a_nan_is_an_error_and_not_a_bad_evaluation():
    with pytest.raises(NonFinite, match="NaN"):
        observed(Stopping(EarlyStopping(), {}), [1.0, math.nan])
    with pytest.raises(NonFinite, match="NaN") as refusal:
        observed(BestResult(Best(), {}), [1.0, math.nan])
    assert "Job.keep" in refusal.value.fix
