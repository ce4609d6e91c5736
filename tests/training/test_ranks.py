"""Two gloo ranks train, skip and evaluate as one process does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

import hasten
from support.ranks.process_group import on_ranks
from support.ranks.rank_jobs import (
    averaged_and_resumed,
    parts_by_sample,
    ranks_on_this_machine,
    replaced_on_ranks,
    skipping_on_one_rank,
    statistics_around_an_evaluation,
    trained,
    trained_by_a_batch_sampler,
    trained_schedule_free,
    trained_through_an_object,
    trained_with_a_part_unused,
    trained_with_balance,
)


@pytest.fixture(scope="module")
def alone():
    return trained()


WHOLE_SHARE = pytest.param(None, marks=pytest.mark.proof, id="whole share")


@pytest.fixture(scope="module", params=[WHOLE_SHARE, pytest.param(3, id="microbatches of 3")])
def two_ranks(request, tmp_path_factory):
    return on_ranks(2, tmp_path_factory.mktemp("ranks"), trained, request.param)


@pytest.mark.trap(2)
@pytest.mark.trap(21)
def test_token_weighted_gradients_over_ranks_are_those_of_the_large_batch(alone, two_ranks):
    for rank in two_ranks:
        for mine, wanted in zip(rank["weights"], alone["weights"], strict=True):
            torch.testing.assert_close(mine, wanted, rtol=1e-9, atol=1e-12)


@pytest.mark.trap(6)
def test_the_logged_loss_is_that_of_the_global_batch(alone, two_ranks):
    for rank in two_ranks:
        assert rank["losses"] == pytest.approx(alone["losses"], rel=1e-6)
        for mine, wanted in zip(rank["parts"], alone["parts"], strict=True):
            assert mine == pytest.approx(wanted, rel=1e-6)


@pytest.mark.trap(15)
def test_the_trace_of_rates_does_not_depend_on_the_number_of_ranks(alone, two_ranks):
    for rank in two_ranks:
        assert rank["rates"] == alone["rates"]


@pytest.mark.trap(44)
def test_an_evaluation_over_ranks_counts_every_sample_once(alone, two_ranks):
    for rank in two_ranks:
        assert rank["results"] == pytest.approx(alone["results"], rel=1e-9)


def test_parts_that_only_some_ranks_have_are_those_of_one_process(tmp_path):
    """Of every step: the last batch of an epoch has one sample, which leaves the second rank without any."""
    wanted = parts_by_sample()
    for rank in on_ranks(2, tmp_path, parts_by_sample):
        for mine, alone in zip(rank, wanted, strict=True):
            assert mine == pytest.approx(alone, rel=1e-3)


@pytest.mark.parametrize("microbatch", [2, pytest.param(None, marks=pytest.mark.proof)])
def test_ranks_divide_the_batches_of_a_batch_sampler(microbatch, tmp_path):
    wanted = trained_by_a_batch_sampler()
    for rank in on_ranks(2, tmp_path, trained_by_a_batch_sampler, microbatch):
        assert rank["losses"] == pytest.approx(wanted["losses"], rel=1e-6)
        assert rank["results"] == pytest.approx(wanted["results"], rel=1e-9)
        for mine, alone in zip(rank["weights"], wanted["weights"], strict=True):
            torch.testing.assert_close(mine, alone, rtol=1e-9, atol=1e-12)


@pytest.mark.proof
def test_ranks_evaluate_with_the_running_statistics_that_are_saved(tmp_path):
    (before, after), (others_before, others_after) = on_ranks(2, tmp_path, statistics_around_an_evaluation)
    assert not torch.equal(before[0], others_before[0])
    for mine, others, saved in zip(after, others_after, before, strict=True):
        assert torch.equal(mine, saved)
        assert torch.equal(others, saved)


@pytest.mark.trap(32)
@pytest.mark.trap(36)
@pytest.mark.parametrize(
    "average",
    [
        hasten.ExponentialAverage(0.8),
        *(pytest.param(each, marks=pytest.mark.proof) for each in (None, hasten.EqualAverage(0.3))),
    ],
    ids=str,
)
def test_a_resumed_run_with_batch_norm_evaluates_over_ranks_as_an_undisturbed_one(average, tmp_path):
    weights, others = on_ranks(2, tmp_path, averaged_and_resumed, str(tmp_path), average)
    whole, resumed = evaluations(tmp_path / "whole"), evaluations(tmp_path / "resumed")
    assert sorted(whole) == list(range(1, 11))
    assert resumed == whole
    kept = [safetensors.torch.load_file(tmp_path / name / "model.safetensors") for name in ("whole", "resumed")]
    for name, each in weights.items():
        assert all(torch.equal(each, other[name]) for other in (others, *kept)), name


@pytest.mark.parametrize("choices", [{}, pytest.param({"shard": "zero3"}, marks=pytest.mark.proof)], ids=str)
def test_ranks_evaluate_and_keep_the_weights_of_an_optimizers_evaluation_mode(choices, tmp_path):
    wanted = trained_schedule_free({})
    for found in on_ranks(2, tmp_path, trained_schedule_free, choices):
        for name, each in wanted.items():
            torch.testing.assert_close(found[name], each, rtol=1e-5, atol=1e-6)


def evaluations(run: Path) -> dict[int, Any]:
    """The results of each step's evaluation, of which there is one."""
    events = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    found = [(each["step"], each["results"]) for each in events if each["event"] == "evaluated"]
    assert len(found) == len(dict(found))
    return dict(found)


@pytest.mark.trap(9)
@pytest.mark.fault("NaN/Inf loss, gradient, norm")
def test_an_infinity_on_one_rank_skips_the_update_on_all(tmp_path):
    first, second = on_ranks(2, tmp_path, skipping_on_one_rank)
    assert first["skipped"] == second["skipped"] == 1
    assert first["applied"] == second["applied"] == 4
    assert first["scale"] == second["scale"] == 512.0
    assert all(torch.equal(a, b) for a, b in zip(first["weights"], second["weights"], strict=True))


@pytest.mark.trap(28)
@pytest.mark.parametrize(
    ("use", "microbatch"),
    [
        *(
            pytest.param(use, None, marks=pytest.mark.proof)
            for use in ("never", "by the loss", "on some steps", "for some rows")
        ),
        ("for some rows", 2),
    ],
)
def test_parameters_that_a_step_does_not_use_train_over_ranks_as_they_do_alone(use, microbatch, tmp_path):
    wanted = trained_with_a_part_unused(use)
    for found in on_ranks(2, tmp_path, trained_with_a_part_unused, use, microbatch):
        for mine, alone in zip(found, wanted, strict=True):
            torch.testing.assert_close(mine, alone)


@pytest.mark.trap(28)
@pytest.mark.parametrize("calls", [pytest.param(1, marks=pytest.mark.proof), 2])
def test_a_model_may_return_any_object_and_be_called_more_than_once(calls, tmp_path):
    wanted = trained_through_an_object(calls)
    for found in on_ranks(2, tmp_path, trained_through_an_object, calls):
        for mine, alone in zip(found, wanted, strict=True):
            torch.testing.assert_close(mine, alone)


@pytest.mark.trap(5)
@pytest.mark.trap(28)
def test_an_auxiliary_term_that_reaches_other_parameters_on_each_rank_trains_as_it_does_alone(tmp_path):
    wanted = trained_with_balance()
    for found in on_ranks(2, tmp_path, trained_with_balance):
        for mine, alone in zip(found, wanted, strict=True):
            torch.testing.assert_close(mine, alone)


def samples_of(lines):
    return sorted(int(line.split()[1]) for line in "\n".join(lines).splitlines() if "cannot be read" in line)


def test_samples_that_any_rank_replaced_are_told_on_each(tmp_path):
    """5 is read by the first rank, 300 by the second."""
    first, second = on_ranks(2, tmp_path, replaced_on_ranks, (5, 300))
    assert (first["failed"], second["failed"]) == ("", "")
    for rank in (first, second):
        assert samples_of(rank["told"]) == [5, 300]
        assert sorted(each["sample"] for each in rank["state"]["found"]) == [5, 300]
        assert rank["state"]["told"] == 2


@pytest.mark.proof
def test_the_limit_is_that_of_all_ranks_together(tmp_path):
    first, second = on_ranks(2, tmp_path, replaced_on_ranks, (5, 300, 1800))
    for rank in (first, second):
        assert "3 of 2000 samples could not be read" in rank["failed"]
    assert samples_of(first["told"]) == [5, 300, 1800]


def test_a_rank_that_fails_tells_what_it_replaced_itself(tmp_path):
    """The ranks do not meet again, and only the first one logs."""
    first, second = on_ranks(2, tmp_path, replaced_on_ranks, (5, 300), 3)
    assert "stops here" in first["failed"]
    assert "stops here" in second["failed"]
    assert (samples_of(first["told"]), samples_of(first["notes"])) == ([5], [])
    assert (samples_of(second["told"]), samples_of(second["notes"])) == ([], [300])


@pytest.mark.parametrize(
    ("said", "counted"),
    [
        ("1", 1),
        *(pytest.param(said, 2, marks=pytest.mark.proof) for said in (None, "2", "8", "no number")),
    ],
)
def test_a_rank_knows_how_many_share_its_machine(said, counted, tmp_path, monkeypatch):
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    if said is not None:
        monkeypatch.setenv("LOCAL_WORLD_SIZE", said)
    assert on_ranks(2, tmp_path, ranks_on_this_machine) == [counted, counted]
