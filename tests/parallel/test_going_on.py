"""A run that was saved by some ranks goes on with others, however each hold its model, on the same batches."""

from __future__ import annotations

import pytest
import torch

from support.parallel.tensor_jobs import (
    averaged_and_gone_on,
    averaged_and_saved_at_six,
    cut,
    gone_on,
    saved_at_six,
    uncut,
)

ALONE, REPLICAS, PARTS, TOGETHER = (1, {}), (2, {}), (2, {"shard": "zero3"}), (2, {"tensor": 2})
STAGES, FOUR_STAGES = (2, {"pipeline": 2}), (4, {"pipeline": 2})
SHARES = (2, {"tensor": (2, {"vocabulary": ["words", "head"], "sequence": True})})
FOUR, FOUR_PARTS, BOTH = (4, {}), (4, {"shard": "zero2"}), (4, {"tensor": 2, "shard": "zero3"})
STAGES_OF_SHARES, STAGES_IN_PARTS = (4, {"pipeline": 2, "tensor": 2}), (4, {"pipeline": 2, "shard": "zero3"})
EVERY_WAY = (8, {"pipeline": 2, "tensor": 2, "shard": "zero3"})


@pytest.fixture(scope="module")
def wanted():
    return uncut()


@pytest.mark.trap(29)
@pytest.mark.trap(36)
@pytest.mark.trap(38)
@pytest.mark.fault("changed world size on resume")
@pytest.mark.parametrize(
    ("before", "after"),
    [
        (PARTS, TOGETHER),
        (STAGES, SHARES),
        *(
            pytest.param(*each, marks=pytest.mark.proof)
            for each in [
                *((each, ALONE) for each in (TOGETHER, STAGES, SHARES)),
                *((ALONE, each) for each in (REPLICAS, PARTS, TOGETHER, FOUR, FOUR_PARTS, BOTH)),
                *((each, ALONE) for each in (REPLICAS, PARTS, FOUR, FOUR_PARTS, BOTH)),
                *((ALONE, STAGES), (PARTS, STAGES), (TOGETHER, FOUR_STAGES)),
                (REPLICAS, TOGETHER),
                (TOGETHER, PARTS),
                (PARTS, BOTH),
                (BOTH, REPLICAS),
                (FOUR_PARTS, TOGETHER),
                (SHARES, PARTS),
                (FOUR, SHARES),
                *((STAGES, each) for each in (REPLICAS, PARTS, TOGETHER, FOUR_STAGES)),
                *((FOUR_STAGES, each) for each in (ALONE, STAGES, BOTH)),
                *((BOTH, each) for each in (PARTS, TOGETHER, STAGES, BOTH)),
                *((each, ALONE) for each in (STAGES_OF_SHARES, STAGES_IN_PARTS, EVERY_WAY)),
                *((STAGES_OF_SHARES, each) for each in (STAGES_IN_PARTS, BOTH, STAGES_OF_SHARES)),
                *((STAGES_IN_PARTS, each) for each in (STAGES, STAGES_OF_SHARES)),
                *((each, EVERY_WAY) for each in (ALONE, BOTH, EVERY_WAY)),
            ]
        ),
    ],
    ids=str,
)
def test_a_run_goes_on_with_other_ranks_as_if_nothing_had_been(before, after, wanted, run_on, tmp_path):
    folder = str(tmp_path / "run")
    begun = saved_at_six if "pipeline" in before[1] else cut  # a stage calls the loss as often as it likes
    assert all(run_on(before[0], begun, folder, before[1]))
    saved = sorted(path.name for path in next((tmp_path / "run" / "checkpoints").glob("step-*")).glob("parts-*"))
    assert len(saved) == (0 if before in (ALONE, REPLICAS, FOUR) else 2 if before == FOUR_STAGES else before[0])
    for found in run_on(after[0], gone_on, folder, after[1]):
        assert found["steps"] == 16
        for name, weight in wanted.items():
            torch.testing.assert_close(found["weights"][name], weight, rtol=1e-5, atol=1e-8)


@pytest.mark.trap(38)
@pytest.mark.parametrize(
    ("before", "after"),
    [
        (STAGES, ALONE),
        *(
            pytest.param(*each, marks=pytest.mark.proof)
            for each in [
                *((PARTS, ALONE), (TOGETHER, PARTS), (STAGES, STAGES), (BOTH, PARTS)),
                *((STAGES_OF_SHARES, ALONE), (STAGES_IN_PARTS, ALONE), (ALONE, EVERY_WAY)),
            ]
        ),
    ],
    ids=str,
)
def test_an_average_and_the_best_weights_go_on_as_well(before, after, run_on, tmp_path):
    whole, folder = str(tmp_path / "whole"), str(tmp_path / "run")
    averaged_and_saved_at_six(whole, {})
    wanted = averaged_and_gone_on(whole, {})
    run_on(before[0], averaged_and_saved_at_six, folder, before[1])
    for found in run_on(after[0], averaged_and_gone_on, folder, after[1]):
        for name, weight in wanted.items():
            torch.testing.assert_close(found[name], weight, rtol=1e-5, atol=1e-8)
