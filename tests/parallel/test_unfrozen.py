"""What a model holds and trains is what it did when its run began, where ranks have divided that."""

from __future__ import annotations

import pytest
from torch.testing import assert_close

from support.parallel.pipeline_jobs import grown, toggled, trained, unfrozen
from support.ranks.process_group import on_ranks

WAYS = [{}, {"shard": "zero3"}]


@pytest.mark.parametrize("choices", WAYS, ids=str)
@pytest.mark.parametrize(
    ("parameter", "what"),
    [("words.weight", "begins to train"), ("positions", "begins to train"), ("norm.bias", "ceases to train")],
)
def test_a_parameter_that_begins_or_ceases_to_be_trained_in_a_run_is_refused_by_name(
    choices, parameter, what, tmp_path
):
    for found in on_ranks(2, tmp_path, unfrozen, choices, parameter, what == "begins to train"):
        assert f"{what} {parameter}" in found["told"]
        assert "after 2 steps" in found["told"]


def test_one_process_may_begin_to_train_a_parameter_in_a_run():
    found = unfrozen({}, "words.weight", True)
    assert not found["told"]
    assert found["moved"] > 0


@pytest.mark.parametrize("choices", WAYS, ids=str)
def test_a_layer_that_a_model_makes_in_a_run_is_refused_by_name(choices, tmp_path):
    for told in on_ranks(2, tmp_path, grown, choices):
        assert "has made late.weight, late.bias in a run" in told


@pytest.mark.parametrize("choices", [*WAYS, {"pipeline": 2}], ids=str)
def test_a_loss_may_freeze_a_block_and_put_it_back(choices, tmp_path):
    wanted = trained({}, kind="toggling")
    for found in on_ranks(2, tmp_path, trained, choices, "GPT", "toggling"):
        assert found["losses"] == pytest.approx(wanted["losses"], rel=1e-9)
        for name, weight in wanted["weights"].items():
            assert_close(found["weights"][name], weight, rtol=1e-9, atol=1e-12)


def test_layers_that_stay_gathered_refuse_a_loss_that_changes_what_they_train(tmp_path):
    for told in on_ranks(2, tmp_path, toggled, {"shard": "zero2"}):
        assert "changes requires_grad in its loss" in told
        assert "zero3" in told
