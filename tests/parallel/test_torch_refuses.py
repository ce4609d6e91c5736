"""What torch raises in a step of several ranks becomes an error that says what to do."""

from __future__ import annotations

from functools import partial

import pytest

from support.parallel.refused_jobs import told
from support.ranks.process_group import on_ranks

proof = partial(pytest.param, marks=pytest.mark.proof)
STATIC = {"communication": ("plain", {"static_graph": True})}


@pytest.mark.parametrize(
    ("name", "choices", "reason"),
    [
        (
            "adafactor",
            {"shard": "zero3"},
            "Adafactor uses an operation that torch does not have for sharded parameters",
        ),
        proof("rprop", {"shard": "zero2"}, "Rprop uses an operation that torch does not have"),
        proof("plain state", {"shard": "zero3"}, "WithPlainState uses an operation that torch does not have"),
        ("sparse", {"shard": "zero3"}, "has sparse gradients in words, but `shard` needs dense ones"),
        ("reentrant", {}, "call checkpoint with use_reentrant=False"),
        ("synchronized", {}, "has SyncBatchNorm, which torch computes over several processes on accelerators alone"),
    ],
    ids=str,
)
def test_what_torch_cannot_do_in_a_first_step_is_refused_by_name(name, choices, reason, tmp_path):
    for found in on_ranks(2, tmp_path, told, name, choices):
        assert reason in found["told"]
        assert not found["steps"]


@pytest.mark.proof
@pytest.mark.parametrize(("name", "choices"), [("adafactor", {}), ("sparse", {}), ("reentrant", STATIC)], ids=str)
def test_other_plans_train_these_jobs(name, choices, tmp_path):
    for found in on_ranks(2, tmp_path, told, name, choices):
        assert found["told"] == ""


def test_a_list_of_a_batch_sampler_of_which_a_process_has_one_sample_is_named(tmp_path):
    for found in on_ranks(2, tmp_path, told, "normed, by lists", {}):
        words = "a batch of the batch_sampler leaves some process one sample, where batch norm over samples fails"
        assert f"{words}: larger batches avoid that" in found["notices"]


def test_a_last_batch_of_which_a_process_has_one_sample_is_refused_by_batch_norm(tmp_path):
    for found in on_ranks(2, tmp_path, told, "normed", {}):
        assert any("an epoch's last batch leaves some process one sample" in each for each in found["notices"])
        assert "Job.batch_size: leaves this process one sample of a batch" in found["told"]
        assert "drop_last=True" in found["told"]
        assert found["steps"] == 1
