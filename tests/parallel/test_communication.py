"""Replicas that send their gradients in another way: what is sent whole trains as one process does, and what is rounded
comes close."""

from __future__ import annotations

import pytest
import torch

from hasten.entry import prepare
from hasten.errors import PlanError
from hasten.facts.plan import make_plan
from support.parallel.alike import check_alike
from support.parallel.shard_jobs import language_job, told_unreached, trained

SMALL_BUCKETS = ("plain", {"bucket_mb": 0.0005})
STATIC = ("plain", {"static_graph": True})


@pytest.fixture(scope="module")
def alone():
    return trained({})


@pytest.mark.trap(28)
@pytest.mark.parametrize(
    ("ranks", "choices"),
    [
        (2, {"communication": STATIC, "microbatch": 2}),
        pytest.param(2, {"communication": SMALL_BUCKETS}, marks=pytest.mark.proof),
        pytest.param(2, {"communication": STATIC}, marks=pytest.mark.proof),
        pytest.param(2, {"communication": STATIC, "activation_checkpointing": "blocks"}, marks=pytest.mark.proof),
        pytest.param(4, {"communication": STATIC, "microbatch": 1}, marks=pytest.mark.proof),
        pytest.param(4, {"communication": SMALL_BUCKETS}, marks=pytest.mark.proof),
    ],
    ids=str,
)
def test_gradients_that_are_sent_whole_train_what_one_process_does(ranks, choices, alone, run_on):
    for found in run_on(ranks, trained, choices):
        check_alike(found, alone)


def test_gradients_that_are_rounded_train_alike_on_all_ranks_and_not_quite_as_one_process(alone, run_on):
    first, second = run_on(2, trained, {"communication": "bf16"})
    assert first["losses"] == second["losses"]
    for name, weight in first["weights"].items():
        assert torch.equal(weight, second["weights"][name])
    assert any(not torch.equal(weight, alone["weights"][name]) for name, weight in first["weights"].items())
    assert first["losses"][0] == pytest.approx(alone["losses"][0])
    assert first["losses"][-1] == pytest.approx(alone["losses"][-1], rel=0.1)


@pytest.mark.trap(28)
def test_parameters_that_no_gradient_reaches_are_named(run_on):
    for told in run_on(2, told_unreached):
        assert len(told) == 1
        assert told[0].startswith("no gradient reached spare.weight, spare.bias in the first step")


@pytest.mark.parametrize(
    "way",
    [
        ("plain", {"rank": 2}),
        ("plain", {"bucket_mb": 0}),
        ("bf16", {"static_graph": 1}),
        ("powersgd", {}),
    ],
    ids=str,
)
def test_options_that_make_no_sense_are_refused(way):
    with pytest.raises(PlanError, match="the plan asks for communication"):
        prepare(language_job(), make_plan(communication=way))
