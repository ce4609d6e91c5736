"""Early stopping: patience is counted in evaluations, and survives a resume."""

import math

import pytest
from torchmetrics.classification import MulticlassAccuracy
from torchmetrics.regression import MeanSquaredError

from hasten.errors import JobError, NonFinite
from hasten.facts.job import EarlyStopping
from hasten.training.evaluation.stopping import Stopping


def observed(stopping: Stopping, values: list[float], metric: str = "loss") -> list[bool]:
    return [stopping.observe({metric: value}, step) for step, value in enumerate(values, start=10)]


def test_patience_counts_evaluations_without_improvement():
    stopping = Stopping(EarlyStopping("loss", patience=2), {})
    assert observed(stopping, [3.0, 2.0, 2.5]) == [True, True, False]
    assert not stopping.over
    assert observed(stopping, [2.0]) == [False]
    assert stopping.over
    assert (stopping.best, stopping.best_step) == (2.0, 11)


@pytest.mark.trap(46)
def test_patience_used_up_before_a_resume_stays_used_up():
    whole, first = Stopping(EarlyStopping(patience=3), {}), Stopping(EarlyStopping(patience=3), {})
    observed(first, [1.0, 2.0, 2.0])
    second = Stopping(EarlyStopping(patience=3), {})
    second.load_state_dict(first.state_dict())
    observed(whole, [1.0, 2.0, 2.0, 2.0])
    observed(second, [2.0])
    assert second.over
    assert second.state_dict() == whole.state_dict()


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


@pytest.mark.trap(51)
def test_a_nan_is_an_error_and_not_a_bad_evaluation():
    with pytest.raises(NonFinite, match="NaN"):
        observed(Stopping(EarlyStopping(), {}), [1.0, math.nan])
