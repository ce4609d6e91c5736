"""Ranks that hold a model in parts train, clip, average, evaluate and go on as one process that holds all of it."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from hasten.entry import prepare
from hasten.facts.plan import make_plan
from hasten.parallel.shard.sharded import blocks_of
from support.parallel.shard_jobs import (
    Block,
    Language,
    Nested,
    cut_and_gone_on,
    gathered_layers,
    language_job,
    made_once,
    refused_auxiliary,
    refused_meta,
    refused_short_weights,
    refused_without_precision,
    trained,
    trained_in_short,
    trained_with_average,
)
from support.ranks.process_group import on_ranks


def in_a_folder(path, name):
    (path / name).mkdir()
    return path / name


def check_alike(found, wanted):
    assert found["losses"] == pytest.approx(wanted["losses"], rel=1e-6)
    assert found["results"] == pytest.approx(wanted["results"], rel=1e-9)
    check_weights(found["weights"], wanted["weights"])


def check_weights(found, wanted):
    assert found.keys() == wanted.keys()
    for name, weight in wanted.items():
        torch.testing.assert_close(found[name], weight, rtol=1e-9, atol=1e-12)


@pytest.fixture(scope="module")
def alone():
    return trained({})


@pytest.mark.parametrize(
    ("ranks", "choices"),
    [
        (2, {"shard": "zero3"}),
        (2, {"shard": "zero2", "microbatch": 2}),
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
def test_ranks_that_hold_parts_train_what_one_process_does(ranks, choices, alone, tmp_path):
    for found in on_ranks(ranks, tmp_path, trained, choices):
        check_alike(found, alone)
        assert found["held"] < found["whole"] / ranks * 1.5
        assert "FSDPBlock" in found["classes"]


def test_an_average_of_weights_is_kept_in_parts(tmp_path):
    wanted = trained_with_average({})
    for found in on_ranks(2, tmp_path, trained_with_average, {"shard": "zero3"}):
        check_alike(found, wanted)


@pytest.mark.trap(36)
@pytest.mark.parametrize(("before", "after"), [({}, {"shard": "zero3"}), ({"shard": "zero2"}, {})], ids=str)
def test_a_run_goes_on_in_parts_that_was_whole_and_the_other_way_round(before, after, tmp_path, alone):
    for found in on_ranks(2, tmp_path, cut_and_gone_on, before, after):
        check_weights(found, alone["weights"])


@pytest.mark.parametrize(
    ("refused", "reason"),
    [(refused_auxiliary, "has an auxiliary term"), (refused_short_weights, "16-bit weights are not supported")],
)
def test_what_cannot_be_trained_in_parts_is_refused_on_all_ranks(refused, reason, tmp_path):
    for told in on_ranks(2, tmp_path, refused):
        assert reason in told


META = {"shard": ("zero3", {"meta": True})}


@pytest.mark.trap(25)
def test_the_first_process_alone_makes_a_model_and_the_others_get_their_parts(tmp_path):
    wanted = on_ranks(2, in_a_folder(tmp_path, "each"), made_once, {"shard": "zero3"})
    found = on_ranks(2, in_a_folder(tmp_path, "once"), made_once, META)
    assert [each["without memory"] for each in found] == [[False], [True]]
    for one, other in zip(found, wanted, strict=True):
        check_alike(one, other)


@pytest.mark.parametrize(
    ("model", "reason"), [("a tensor", "holds the tensor kept"), ("a number", "cannot be built on the meta device")]
)
def test_a_model_that_cannot_be_made_without_memory_is_refused(model, reason, tmp_path):
    for told in on_ranks(2, tmp_path, refused_meta, model):
        assert reason in told


def test_blocks_are_gathered_in_the_format_that_their_products_take(tmp_path):
    short = {"precision": "bf16", "shard": ("zero3", {"parameters": "bf16", "gradients": "bf16"})}
    plain = trained_in_short({"precision": "bf16"})
    for found in on_ranks(2, tmp_path, trained_in_short, short):
        assert found["formats"] == {"block": "torch.bfloat16", "head": "torch.float32"}
        assert found["losses"] == pytest.approx(plain["losses"], rel=0.02)


def test_blocks_in_a_format_that_nothing_computes_in_are_refused(tmp_path):
    for told in on_ranks(2, tmp_path, refused_without_precision):
        assert 'only precision = "bf16" computes in' in told


def test_one_process_holds_the_whole_and_says_so():
    with prepare(language_job(), make_plan(shard="zero3")) as run:
        assert run.built.strategy.sharding.is_whole
        assert any("one process cannot shard a model" in notice for notice in run.notices)


def test_layers_that_are_repeated_are_gathered_each_by_itself():
    model = Language()
    assert {*blocks_of(model)} == {*model.blocks}


def test_a_layer_that_shares_a_parameter_is_gathered_with_the_rest():
    model = Language()
    model.blocks[1].norm.weight = model.blocks[0].norm.weight
    assert {*blocks_of(model)} == {model.blocks[2]}


def test_layers_that_hold_one_module_together_are_gathered_with_the_rest():
    model, together = Language(), nn.Linear(4, 4)
    model.blocks[0].together = model.blocks[2].together = together
    assert blocks_of(model) == [model.blocks[1]]


def test_a_layer_that_lies_in_two_rows_is_gathered_by_itself():
    model = Language()
    model.again = nn.ModuleList(model.blocks)
    assert blocks_of(model) == [*model.blocks]


def rows(count, *layers):
    return nn.Sequential(*(nn.Sequential(*(copy.deepcopy(each) for each in layers)) for _ in range(count)))


def test_blocks_are_found_innermost_first_without_their_single_layers():
    nested = Nested()
    assert blocks_of(nested) == [*nested.blocks]
    stages = rows(2, Block(), Block())
    assert blocks_of(stages) == [*stages[0], *stages[1]]
    stages = rows(2, Block(), Block(), nn.Linear(4, 4))
    assert blocks_of(stages) == [*stages[0][:2], stages[0], *stages[1][:2], stages[1]]


@pytest.mark.parametrize("layers", [(nn.Linear(4, 4), nn.ReLU()), (nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))])
def test_rows_of_single_layers_that_are_repeated_are_gathered_as_rows(layers):
    model = rows(3, *layers)
    assert blocks_of(model) == [*model]


def test_single_layers_of_a_row_that_is_the_model_are_gathered_by_themselves():
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    assert blocks_of(model) == [model[0], model[2]]


def test_a_run_gathers_the_layers_that_a_model_repeats(tmp_path):
    for found in on_ranks(2, tmp_path, gathered_layers):
        assert found == ["blocks.0", "blocks.1", "blocks.2"]
