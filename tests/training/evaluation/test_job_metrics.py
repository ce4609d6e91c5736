"""Metrics of a job, whoever wrote them, are over several ranks what they are in one process."""

from functools import cache, partial

import pytest

from hasten.training.evaluation.torchmetrics_states import merges
from support.ranks.process_group import on_ranks
from support.training.metric_jobs import judged, metrics, stopped_by

SAMPLES = 11

# Of one sample there are classes that never occur.
pytestmark = pytest.mark.filterwarnings("ignore:(No positive|No negative) samples:UserWarning")


@pytest.fixture(scope="module")
def alone():
    return cache(partial(judged, {}))


@pytest.mark.trap(44)
@pytest.mark.parametrize(
    ("ranks", "choices", "samples"),
    [
        (2, {}, 1),
        *(
            pytest.param(*each, marks=pytest.mark.proof)
            for each in [
                (2, {}, SAMPLES),
                (4, {}, SAMPLES),
                (4, {}, 3),
                (4, {}, 1),
                (2, {"shard": "zero3"}, SAMPLES),
                (2, {"shard": "zero3"}, 1),
                (2, {"pipeline": 2}, SAMPLES),
                (4, {"pipeline": 2}, SAMPLES),
                (4, {"pipeline": 2}, 1),
                (2, {"tensor": 2}, SAMPLES),
                (4, {"tensor": 2}, SAMPLES),
                (4, {"tensor": 2, "shard": "zero3"}, 1),
            ]
        ),
    ],
    ids=str,
)
def test_any_metric_is_over_ranks_what_it_is_in_one_process(ranks, choices, samples, alone, tmp_path):
    for found in on_ranks(ranks, tmp_path, judged, choices, samples):
        for mine, wanted in zip(found, alone(samples), strict=True):
            assert mine == pytest.approx(wanted, rel=1e-6)


def test_only_what_torchmetrics_surely_adds_up_right_is_left_to_it():
    assert [name for name, metric in metrics().items() if merges(metric)] == ["merged"]


@pytest.mark.proof
@pytest.mark.parametrize("metric", ["own", "each its own"])
def test_a_metric_of_ones_own_ends_all_ranks_in_the_same_step(metric, tmp_path):
    first, second = on_ranks(2, tmp_path, stopped_by, metric)
    assert first == second == stopped_by(metric)


def test_ranks_keep_the_best_of_the_same_step(tmp_path):
    first, second = on_ranks(2, tmp_path, stopped_by, "own", "each its own")
    assert first == second == stopped_by("own", "each its own")
