"""Ranks that hold a model in parts call the same layers, or are told together which ones they do not."""

from __future__ import annotations

import pytest

from support.parallel.calling_jobs import told
from support.ranks.process_group import on_ranks


@pytest.mark.parametrize(
    ("name", "choices", "reason"),
    [
        ("by sample", {"shard": "zero3"}, "calls adapters."),
        pytest.param(
            "fewer",
            {"shard": "zero3"},
            "calls blocks.3 on one process where another calls no layer more",
            marks=pytest.mark.proof,
        ),
        pytest.param("by sample", {"shard": "zero2"}, "calls adapters.", marks=pytest.mark.proof),
    ],
    ids=str,
)
def test_layers_that_are_not_called_alike_are_refused_by_name_on_all_ranks(name, choices, reason, tmp_path):
    first, second = on_ranks(2, tmp_path, told, name, choices)
    assert reason in first
    assert first == second


def test_layers_that_a_checkpoint_calls_again_are_no_others(tmp_path):
    assert on_ranks(2, tmp_path, told, "checkpointed", {"shard": "zero3"}) == ["", ""]
