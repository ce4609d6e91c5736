"""Ranks that hold a model in parts train, clip, average, evaluate and go on as one process that holds all of it."""

from __future__ import annotations

import pytest
from torch import nn

from hasten.entry import prepare
from hasten.facts.plan import make_plan
from hasten.parallel.repeated_blocks import unshared_blocks
from support.parallel.alike import check_alike
from support.parallel.shard_jobs import (
    Language,
    gathered_layers,
    language_job,
    made_once,
    refusals,
    trained,
    trained_in_short,
    trained_with_average,
)


@pytest.fixture(scope="module")
def alone():
    return trained({})


@pytest.mark.parametrize(
    ("ranks", "choices"),
    [
        (2, {"shard": "zero2", "microbatch": 2}),
        pytest.param(2, {"shard": "zero3"}, marks=pytest.mark.proof),
        pytest.param(4, {"shard": "zero3", "microbatch": 2}, marks=pytest.mark.proof),
        pytest.param(4, {"shard": "zero2"}, marks=pytest.mark.proof),
        *(
            pytest.param(2, {"shard": "zero3", **other}, marks=pytest.mark.proof)
            for other in (
                {"fused_optimizer": "fused"},
                {"fused_optimizer": "for_loop"},
                {"activation_checkpointing": "blocks"},
                {"accumulation": 2},
                {"evaluation_batch": 2},
            )
        ),
    ],
    ids=str,
)
def test_ranks_that_hold_parts_train_what_one_process_does(ranks, choices, alone, run_on):
    for found in run_on(ranks, trained, choices):
        check_alike(found, alone)
        assert found["held"] < found["whole"] / ranks * 1.5
        assert "FSDPBlock" in found["classes"]


def test_an_average_of_weights_is_kept_in_parts(run_on):
    wanted = trained_with_average({})
    for found in run_on(2, trained_with_average, {"shard": "zero3"}):
        check_alike(found, wanted)


def test_what_cannot_be_trained_in_parts_is_refused_on_all_ranks(run_on):
    reasons = [
        "has an auxiliary term",
        "16-bit weights are not supported",
        'is valid only with precision = "bf16"',
        "Own.kept is a tensor but not a buffer",
        "cannot be built on the meta device",
    ]
    for found in run_on(2, refusals):
        for told, reason in zip(found, reasons, strict=True):
            assert reason in told


META = {"shard": ("zero3", {"meta": True})}


@pytest.mark.trap(25)
def test_the_first_process_alone_makes_a_model_and_the_others_get_their_parts(run_on):
    wanted = run_on(2, made_once, {"shard": "zero3"})
    found = run_on(2, made_once, META)
    assert [each["without memory"] for each in found] == [[False], [True]]
    for one, other in zip(found, wanted, strict=True):
        check_alike(one, other)


def test_blocks_are_gathered_in_the_format_that_their_products_take(run_on):
    short = {"precision": "bf16", "shard": ("zero3", {"parameters": "bf16", "gradients": "bf16"})}
    plain = trained_in_short({"precision": "bf16"})
    for found in run_on(2, trained_in_short, short):
        assert found["formats"] == {"block": "torch.bfloat16", "head": "torch.float32"}
        assert found["losses"] == pytest.approx(plain["losses"], rel=0.02)


def test_one_process_holds_the_whole_and_says_so():
    with prepare(language_job(), make_plan(shard="zero3")) as run:
        assert run.built.strategy.sharding.is_whole
        assert any("one process cannot shard a model" in notice for notice in run.notices)


def test_blocks_that_share_nothing_are_gathered_each_by_itself():
    model, together = Language(), nn.Linear(4, 4)
    assert unshared_blocks(model) == ["blocks.0", "blocks.1", "blocks.2"]
    model.blocks[1].norm.weight = model.blocks[0].norm.weight
    assert unshared_blocks(model) == ["blocks.2"]
    model = Language()
    model.blocks[0].together = model.blocks[2].together = together
    assert unshared_blocks(model) == ["blocks.1"]


def test_a_run_gathers_the_layers_that_a_model_repeats(run_on):
    for found in run_on(2, gathered_layers):
        assert found == ["blocks.0", "blocks.1", "blocks.2"]
