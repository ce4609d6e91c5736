"""Fifty steps of one job, whatever way ranks hold its model: the losses, metrics and weights of one process."""

from __future__ import annotations

import pytest
import torch

from support.parallel.tensor_jobs import trained_for_long

SHARES = (2, {"vocabulary": ["words", "head"], "sequence": True})
PARTS, TOGETHER = {"shard": "zero3"}, {"tensor": 2}
WAYS = [
    (2, {}),
    (2, PARTS),
    (2, {"shard": "zero2"}),
    (2, TOGETHER),
    (4, {}),
    (4, PARTS),
    (4, {"shard": "zero2"}),
    (4, {"tensor": 4}),
    (4, TOGETHER),
    (4, {**TOGETHER, **PARTS}),
    (4, {**TOGETHER, "shard": "zero2", "microbatch": 2}),
    (4, {**TOGETHER, "communication": ("plain", {"static_graph": True}), "microbatch": 2}),
    (2, {"tensor": SHARES}),
    (4, {"tensor": SHARES, **PARTS}),
    (2, {"pipeline": 2}),
    (4, {"pipeline": (2, {"schedule": "gpipe"})}),
    (4, {"pipeline": 2, **TOGETHER}),
    (4, {"pipeline": 2, "tensor": SHARES}),
    (4, {"pipeline": 2, **PARTS}),
    (4, {"pipeline": 2, "shard": "zero2"}),
    (8, {"pipeline": 2, **TOGETHER, **PARTS}),
]


@pytest.fixture(scope="module")
def alone():
    return trained_for_long({})


@pytest.mark.proof
@pytest.mark.trap(2)
@pytest.mark.trap(29)
@pytest.mark.trap(44)
@pytest.mark.parametrize(("ranks", "choices"), WAYS, ids=str)
def test_fifty_steps_are_those_of_one_process(ranks, choices, alone, run_on):
    assert len(alone["losses"]) >= 50
    for found in run_on(ranks, trained_for_long, choices):
        assert found["losses"] == pytest.approx(alone["losses"], rel=1e-8)
        assert found["norms"] == pytest.approx(alone["norms"], rel=1e-6)
        assert found["results"] == pytest.approx(alone["results"], rel=1e-9)
        for name, weight in alone["weights"].items():
            torch.testing.assert_close(found["weights"][name], weight, rtol=1e-6, atol=1e-9)
