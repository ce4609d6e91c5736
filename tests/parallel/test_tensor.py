"""Ranks that hold layers together train, clip, average, evaluate and go on as one process that holds all of them."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.utils.parametrizations import weight_norm

from hasten.entry import prepare
from hasten.facts.plan import make_plan
from hasten.parallel.tensor.layer_patterns import Columns, Heads, Rows, divisible
from support.parallel.alike import check_alike, check_weights
from support.parallel.tensor_jobs import (
    all_refused,
    copied_teacher,
    held_alike,
    noticed,
    put_together,
    refused,
    refused_optimizer,
    skipped_alike,
    trained,
    trained_by_the_largest,
    trained_with_average,
    word_job,
)
from support.parallel.tensor_models import GPT, Encoder, Tripled

TOGETHER = {"tensor": 2}


@pytest.fixture(scope="module")
def alone():
    return {model: trained({}, model) for model in ("gpt", "encoder")}


@pytest.mark.trap(24)
@pytest.mark.trap(25)
@pytest.mark.trap(26)
@pytest.mark.parametrize(
    ("ranks", "choices", "model"),
    [
        (2, {**TOGETHER, "microbatch": 2}, "encoder"),
        *(
            pytest.param(ranks, choices, model, marks=pytest.mark.proof)
            for ranks, choices, model in [
                (2, TOGETHER, "gpt"),
                (4, {"tensor": 4}, "gpt"),
                (4, {"tensor": 4, "microbatch": 2}, "encoder"),
                (4, {**TOGETHER, "microbatch": 2}, "gpt"),
                (4, TOGETHER, "encoder"),
                (4, {**TOGETHER, "shard": "zero3"}, "gpt"),
                (4, {**TOGETHER, "shard": "zero2", "microbatch": 2}, "encoder"),
                (2, {**TOGETHER, "activation_checkpointing": "blocks"}, "gpt"),
                (2, {**TOGETHER, "fused_optimizer": "fused"}, "gpt"),
                (2, {**TOGETHER, "accumulation": 2}, "encoder"),
                (2, {**TOGETHER, "evaluation_batch": 3}, "encoder"),
            ]
        ),
    ],
    ids=str,
)
def test_ranks_that_hold_layers_together_train_what_one_process_does(ranks, choices, model, alone, run_on):
    for found in run_on(ranks, trained, choices, model):
        check_alike(found, alone[model])
        whole = sum(weight.numel() for weight in alone[model]["weights"].values())
        assert found["held"] < 0.75 * whole or "shard" in choices


@pytest.mark.trap(24)
@pytest.mark.parametrize("way", [trained_by_the_largest, pytest.param(trained_with_average, marks=pytest.mark.proof)])
def test_averages_and_other_norms_are_those_of_one_process(way, run_on):
    wanted = way({})
    for found in run_on(2, way, TOGETHER):
        check_alike(found, wanted)


@pytest.mark.trap(9)
@pytest.mark.trap(23)
def test_an_infinity_in_the_share_of_one_rank_keeps_all_from_moving(run_on):
    for told in run_on(2, skipped_alike):
        assert told == ["NonFinite", True]


@pytest.mark.trap(26)
@pytest.mark.parametrize("before", [{}, pytest.param(TOGETHER, marks=pytest.mark.proof)], ids=str)
def test_ranks_that_hold_a_model_together_draw_alike_also_when_a_run_goes_on(before, run_on):
    first, second = run_on(2, held_alike, before, TOGETHER)
    assert first
    for one, other in zip(first, second, strict=True):
        assert torch.equal(one, other)


def test_a_copy_of_a_model_computes_with_its_own_shares(run_on):
    for found in run_on(2, copied_teacher):
        assert found == [True, False]


@pytest.mark.parametrize(
    "pair",
    [
        (nn.Linear(4, 8), nn.GELU(), Tripled(8, 4)),
        (weight_norm(nn.Linear(4, 8)), nn.GELU(), nn.Linear(8, 4)),
        (nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 4)),
        (nn.Linear(8, 4), nn.GELU(), nn.Linear(4, 8)),
    ],
    ids=["a class of one's own", "a weight that is computed", "a norm between them", "narrower between them"],
)
def test_layers_that_are_like_known_ones_are_left_alone(pair):
    assert divisible(nn.Sequential(*pair)) == {}


@pytest.mark.parametrize(("dim", "parts"), [(0, 3), (1, 2)])
def test_shares_that_are_gathered_are_the_whole(dim, parts, run_on):
    for whole, gathered in run_on(2, put_together, dim, parts):
        assert torch.equal(whole, gathered)


NO_HEADS = {"columns": ["blocks.*.query_key_value:3"], "rows": ["blocks.*.mix"]}


def test_what_cannot_be_divided_is_refused_with_the_reason(run_on):
    """As is a loss or a gradient that is wrong by a norm of each head, or behind a layer that begins with zeros."""
    cases = [
        (3, {}, {}, "2 processes cannot be divided into groups of 3"),
        (2, {"columns": ["blocks.*.nothing"]}, {}, "which matches nothing in the model"),
        (2, {"columns": ["head"]}, {}, "words.weight and head.weight are one"),
        (2, {"columns": ["blocks.*.perceptron.1"]}, {}, "the divided model fails on the first batch"),
        (2, {"rows": ["*.mix"], "columns": ["*.mix"]}, {}, "mix is named twice"),
        (2, {"rows": ["blocks.*.mix"]}, {}, "the divided model fails on the first batch"),
        (2, {"heads": ["blocks.*.heads"]}, {}, "the loss is"),
        (2, {}, {"model": "normed"}, "the gradient of blocks.0.norm."),
        (2, NO_HEADS, {"model": "resting"}, "the gradient of words.weight"),
    ]
    asked = [({"tensor": (size, options)}, changes) for size, options, changes, _ in cases]
    for (*_, reason), *found in zip(cases, *run_on(2, all_refused, asked), strict=True):
        assert all(reason in each for each in found), (reason, found)


@pytest.mark.proof
def test_a_size_that_the_number_of_processes_does_not_divide_is_refused(run_on):
    for told in run_on(3, refused, {"tensor": 3}):
        assert "cannot be divided over 3 processes" in told


def test_an_optimizer_of_whole_matrices_is_refused(run_on):
    for told in run_on(2, refused_optimizer):
        assert "Adafactor computes with whole matrices" in told


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_an_encoder_that_leaves_padding_out_is_divided(run_on):
    wanted = trained({}, "padded")
    for found in run_on(2, trained, TOGETHER, "padded"):
        assert found["losses"] == pytest.approx(wanted["losses"], rel=1e-9)
        check_weights(found["weights"], wanted["weights"])


def test_a_learned_mask_and_what_hangs_on_a_parameter_are_those_of_one_process(run_on):
    wanted = trained({}, "masked")
    for found in run_on(2, trained, TOGETHER, "masked"):
        assert found["norms"] == pytest.approx(wanted["norms"], rel=1e-6)
        check_weights(found["weights"], wanted["weights"])


def test_layers_that_are_known_are_found_by_what_they_are():
    assert divisible(GPT()) == {
        f"blocks.{number}{path}": way
        for number in range(2)
        for path, way in {
            ".query_key_value": Columns(3),
            ".mix": Rows(),
            "": Heads("heads"),
            ".perceptron.1": Columns(),
            ".perceptron.3": Rows(),
        }.items()
    }
    assert set(divisible(Encoder()).values()) == {Heads(), Columns(), Rows()}


@pytest.mark.proof
def test_layers_that_are_named_are_divided_alone(run_on):
    options = {"columns": ["blocks.*.perceptron.1"], "rows": ["blocks.*.perceptron.3"]}
    wanted = trained({})
    for found in run_on(2, trained, {"tensor": (2, options)}):
        check_alike(found, wanted)


@pytest.mark.parametrize(("options", "is_of_use"), [({"columns": ["wide"], "rows": ["narrow"]}, True), ({}, False)])
def test_layers_that_no_table_knows_are_of_use_where_they_are_named(options, is_of_use, run_on):
    for notices in run_on(2, noticed, {"tensor": (2, options)}):
        assert any("would not try it here" in notice for notice in notices) is not is_of_use


def test_one_process_holds_whole_layers_and_says_so():
    with prepare(word_job(), make_plan(tensor=2)) as run:
        assert run.built.strategy.sharding.is_whole
        assert any("one process cannot divide a model" in notice for notice in run.notices)
