"""What the bench of peers trains is the same in every arm, and what it counts is what it says."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from bench.peer_trainers import by_hand, loaders
from bench.peer_work import Columns, How, Work, of_rows
from bench.peers import (
    HASTEN,
    LEAST,
    whole_targets,
)
from torch import nn
from torch.utils.data import TensorDataset

SAMPLES, BATCH = 22, 4


def work(*, by_batches: bool = True, **length: Any) -> Work:
    drawn = torch.Generator().manual_seed(0)
    columns = torch.randn(SAMPLES, 5, generator=drawn), torch.randint(3, (SAMPLES,), generator=drawn)
    kept = Columns(columns, of_rows) if by_batches else TensorDataset(*columns)
    return Work(
        model=lambda: nn.Linear(5, 3),
        train=TensorDataset(*columns),
        valid=TensorDataset(*columns),
        careful=lambda: (kept, kept),
        by_batches=by_batches,
        loss=nn.CrossEntropyLoss(),
        batch_size=BATCH,
        metric="accuracy",
        **length,
    )


@pytest.mark.parametrize("by_batches", [False, True])
@pytest.mark.parametrize("tuned", [False, True])
def test_every_loader_gives_every_sample_once_an_epoch(tuned, by_batches):
    wanted = sorted(work().train[index][0].tolist() for index in range(SAMPLES))
    for loader, size in zip(loaders(work(by_batches=by_batches), How(tuned=tuned, workers=0)), (4, 16), strict=True):
        batches = list(loader)
        assert sorted(row for inputs, _ in batches for row in inputs.tolist()) == wanted
        assert len(batches[0][0]) == (size if tuned else BATCH)
        assert len(loader) == len(batches)


@pytest.mark.parametrize("tuned", [False, True])
@pytest.mark.parametrize(
    ("length", "steps", "told"),
    [({"epochs": 3}, 18, 3), ({"steps": 10, "every": 5}, 10, 2)],
)
def test_a_loop_by_hand_takes_the_planned_steps_and_tells_every_evaluation(tuned, length, steps, told):
    ticks, results = list[int](), list[float]()
    by_hand(work(**length), How(tuned=tuned, workers=0, tick=lambda: ticks.append(1), told=results.append))
    assert (len(ticks), len(results)) == (steps, told)
    assert all(0 <= each <= 1 for each in results)


def test_whole_runs_of_a_peer_are_held_against_those_of_hasten_from_the_same_seeds():
    wholes = {"by_hand, tuned, 0 workers": [{"seconds": each} for each in (4.0, 9.0)]}
    (target,) = whole_targets(wholes | {HASTEN: [{"seconds": each} for each in (4.0, 10.0)]})
    assert (target.bound, target.at_most) == (LEAST["by_hand"], False)
    assert target.value == pytest.approx((4.0 / 4.0 * 9.0 / 10.0) ** 0.5)
    assert target.low < target.value < target.high
    assert target.outcome == "inconclusive"
