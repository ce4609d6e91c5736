"""Ranks that hold a model one behind the other train, clip, average, evaluate and go on as one process does."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hasten.data.order.batch_pieces import equal_pieces, share
from hasten.entry import prepare
from hasten.facts.plan import make_plan
from support.parallel.alike import check_alike, check_weights
from support.parallel.pipeline_jobs import (
    all_refused,
    cut_and_gone_on,
    job_of,
    masks,
    noticed,
    refused,
    skipped_alike,
    trained,
    trained_by_the_largest,
    trained_from_the_start,
    trained_in_dozens,
    trained_with_average,
)


def stages(number=2, **options):
    return {"pipeline": (number, options)}


@pytest.fixture(scope="module")
def alone():
    return trained({})


@pytest.mark.trap(24)
@pytest.mark.trap(25)
@pytest.mark.trap(27)
@pytest.mark.parametrize(
    ("ranks", "choices"),
    [
        (2, stages(schedule="gpipe", microbatches=3, before=["blocks.1"])),
        (2, stages(schedule="interleaved")),
        *(
            pytest.param(ranks, choices, marks=pytest.mark.proof)
            for ranks, choices in [
                (2, stages()),
                (2, stages(schedule="1f1b", microbatches=1)),
                (2, stages(schedule="interleaved", microbatches=8)),
                (4, stages(4)),
                (4, stages(4, schedule="gpipe")),
                (4, stages()),
                (4, stages(schedule="interleaved")),
                (2, stages() | {"activation_checkpointing": "blocks"}),
                (2, stages() | {"evaluation_batch": 3}),
                (2, stages() | {"fused_optimizer": "fused"}),
            ]
        ),
    ],
    ids=str,
)
def test_stages_train_what_one_process_does(ranks, choices, alone, run_on):
    for found in run_on(ranks, trained, choices):
        check_alike(found, alone)
        assert found["held"] < 0.75 * sum(weight.numel() for weight in alone["weights"].values())


@pytest.mark.trap(4)
@pytest.mark.trap(27)
def test_a_mean_is_that_of_the_whole_batch(run_on):
    wanted = trained({}, kind="mean")
    for found in run_on(2, trained, stages(), "GPT", "mean"):
        check_alike(found, wanted)


@pytest.mark.trap(27)
@pytest.mark.trap(30)
@pytest.mark.trap(32)
@pytest.mark.parametrize(
    "options", [{"before": ["blocks.1"]}, pytest.param({"schedule": "interleaved"}, marks=pytest.mark.proof)], ids=str
)
def test_batch_norm_and_what_is_trained_between_blocks_are_those_of_one_process(options, run_on):
    whole = {"drop_last": True, "batch_size": 8}
    wanted = trained_with_average({"microbatch": 2}, "Mixed", whole)
    for found in run_on(2, trained_with_average, stages(microbatches=4, **options), "Mixed", whole):
        check_alike(found, wanted)


def test_blocks_may_write_to_what_they_are_given(run_on):
    wanted = trained({}, "Writing")
    for found in run_on(2, trained, stages(before=["blocks.2"]), "Writing"):
        check_alike(found, wanted)


@pytest.mark.parametrize(
    "options", [{}, *(pytest.param({"schedule": each}, marks=pytest.mark.proof) for each in ("gpipe", "interleaved"))]
)
def test_what_a_loss_draws_is_the_same_on_every_stage(options, run_on):
    first, last = run_on(2, masks, stages(**options))
    training, evaluation, behind = first
    assert {tuple(each) for each in training} == {tuple(each) for each in last[0]}
    assert len({tuple(each) for each in training}) > 12  # each microbatch has its own
    assert {tuple(each) for each in last[1]} <= {tuple(each) for each in evaluation}  # the first looked at shapes too
    assert not behind  # where it never comes
    drawn = last[2]
    assert len({*drawn}) == len(drawn)  # nor any two alike


@pytest.mark.trap(28)
def test_a_stage_of_which_nothing_is_trained_stands_and_hands_on(run_on):
    wanted = trained({}, "Frozen")
    for found in run_on(2, trained, stages(before=["blocks.2"]), "Frozen"):
        check_alike(found, wanted)


@pytest.mark.trap(24)
@pytest.mark.parametrize(
    "model", ["Peeking", *(pytest.param(each, marks=pytest.mark.proof) for each in ("Untied", "Masked"))]
)
def test_what_lies_around_the_blocks_may_be_read_anywhere(model, run_on):
    wanted = trained({}, model)
    for found in run_on(2, trained, stages(), model):
        check_alike(found, wanted)


@pytest.mark.proof
@pytest.mark.trap(22)
def test_a_pipeline_without_a_share_of_the_last_window_takes_part(run_on):
    """Of 37 samples, the last window has one, and there are two pipelines."""
    wanted = trained({}, batch_size=12)
    for found in run_on(4, trained_in_dozens, stages()):
        check_alike(found, wanted)


@pytest.mark.trap(24)
@pytest.mark.parametrize("way", [trained_by_the_largest, pytest.param(trained_with_average, marks=pytest.mark.proof)])
def test_averages_and_other_norms_are_those_of_one_process(way, run_on):
    wanted = way({})
    for found in run_on(2, way, stages()):
        check_alike(found, wanted)


@pytest.mark.proof
@pytest.mark.trap(24)
@pytest.mark.parametrize("beside", [{"tensor": 2}, {"shard": "zero3"}, {"shard": "zero2"}], ids=str)
@pytest.mark.parametrize("way", [trained, trained_with_average, trained_by_the_largest, trained_from_the_start])
def test_stages_that_several_hold_train_as_one_process(way, beside, run_on):
    wanted = way({})
    for found in run_on(4, way, stages() | beside):
        check_alike(found, wanted)


def test_stages_whose_layers_divide_a_sequence_train_as_one_process(run_on):
    wanted = trained({})
    for found in run_on(4, trained, stages() | {"tensor": (2, {"vocabulary": ["words", "head"], "sequence": True})}):
        check_alike(found, wanted)


@pytest.mark.proof
@pytest.mark.parametrize("beside", [{"tensor": 2}, {"shard": "zero3"}, {"shard": "zero2"}], ids=str)
@pytest.mark.parametrize("again", [{}, {"activation_checkpointing": "blocks"}], ids=str)
def test_two_stages_of_each_that_several_hold_train_as_one_process(beside, again, run_on):
    wanted = trained({})
    for found in run_on(4, trained, stages(schedule="interleaved") | beside | again):
        check_alike(found, wanted)


@pytest.mark.proof
@pytest.mark.trap(28)
def test_a_stage_in_parts_of_which_nothing_is_trained_stands_and_hands_on(run_on):
    wanted = trained({}, "Frozen")
    for found in run_on(4, trained, stages(before=["blocks.2"]) | {"shard": "zero3"}, "Frozen"):
        check_alike(found, wanted)


@pytest.mark.proof
@pytest.mark.trap(36)
@pytest.mark.trap(38)
@pytest.mark.parametrize(
    ("ranks", "before", "after"),
    [
        (2, stages(before=["blocks.1"]), stages(before=["blocks.3"])),
        (2, stages(schedule="interleaved"), stages(schedule="gpipe")),
        (4, stages(4), stages(2)),
        (4, stages(2), stages(4)),
    ],
    ids=str,
)
def test_a_run_goes_on_in_other_stages(ranks, before, after, run_on):
    wanted = trained_with_average({})["weights"]
    for found in run_on(ranks, cut_and_gone_on, before, after):
        check_weights(found, wanted)


@pytest.mark.trap(9)
@pytest.mark.trap(23)
def test_an_infinity_in_one_stage_keeps_all_from_moving(run_on):
    for told in run_on(2, skipped_alike):
        assert told == ["NonFinite", True]


def test_models_that_are_no_row_of_blocks_are_refused_with_the_reason(run_on):
    cut = stages(before=["blocks.2"])
    cases = [
        (stages(), "Twice", "loss", "blocks.0 is called 2 times"),
        (stages(), "Halves", "loss", "blocks.0 returns tuple, and not one tensor"),
        (stages(), "Tied", "loss", "blocks.0.mix.weight is a parameter of another part of the model as well"),
        (cut, "Remembering", "loss", "the loss is"),
        (cut, "Resting", "loss", "the loss is"),
        (stages(), "Annealed", "loss", "the loss is"),
        (stages(), "Sparse", "loss", "has sparse gradients in words"),
        (cut, "GPT", "penalized", "the loss is"),
        (stages(), "GPT", "with_auxiliary", "has an auxiliary term"),
        (stages(before=["blocks.0"]), "GPT", "loss", "before names blocks.0, which are not called in this order"),
        (stages() | {"tensor": 2}, "GPT", "loss", "groups of 4 that hold one model (pipeline 2 × tensor 2)"),
    ]
    for (*_, reason), *found in zip(cases, *run_on(2, all_refused, [case[:3] for case in cases]), strict=True):
        assert all(reason in each for each in found), (reason, found)


@pytest.mark.parametrize(
    ("choices", "reason"),
    [
        (stages(before=["blocks.9"]), "before names 'blocks.9', which is not a repeated block"),
        (stages(before=["blocks.1", "blocks.2"]), "before names 2 blocks for 2 stages"),
        (stages(5), "repeats 4 blocks, and the plan asks for 5 stages"),
        (stages() | {"microbatch": 2}, "both say how many samples"),
        (stages() | {"precision": "fp16"}, "another loss scale"),
        (stages() | {"compile": "default"}, "in the middle of its forward pass"),
    ],
    ids=str,
)
def test_plans_that_ask_for_no_pipeline_are_refused_with_the_reason(choices, reason):
    assert reason in refused(choices)


def test_parts_of_what_one_process_alone_holds_are_none_and_that_is_said(run_on):
    for told in run_on(2, noticed, stages() | {"shard": "zero3"}):
        assert any("shard has no effect" in each for each in told)


def test_that_batch_norm_sees_a_part_of_each_batch_is_said(run_on):
    for told in run_on(2, noticed, stages(), "Mixed"):
        assert any("batch norm uses 2 samples at a time instead of the batch of 8" in each for each in told)


def test_one_process_holds_the_whole_model_and_says_so():
    with prepare(job_of(), make_plan(pipeline=2)) as run:
        assert run.built.strategy.sharding.is_whole
        assert any("one process cannot divide a model" in notice for notice in run.notices)


@given(st.integers(0, 60), st.integers(1, 9), st.integers(1, 4))
def test_equal_pieces_are_as_many_on_each_rank_of_one_size_and_leave_nothing_out(size, parts, ranks):
    every = [equal_pieces(size, parts, rank, ranks) for rank in range(ranks)]
    assert len({len(found) for found in every}) == 1
    assert len({piece.samples for found in every for piece in found} - {0}) <= 1
    for rank, found in enumerate(every):
        start, stop = share(size, rank, ranks)
        assert [piece.last for piece in found] == [False] * (len(found) - 1) + [True]
        assert [piece.start for piece in found[1:]] == [piece.stop for piece in found[:-1]]
        assert (found[0].start, found[-1].stop) == (start, stop)
        assert len(found) >= min(parts, stop - start)
