"""What torch cannot do in a step of several ranks is refused with what to do."""

from __future__ import annotations

import pytest

from support.parallel.refused_jobs import told
from support.ranks.process_group import on_ranks


def test_sparse_gradients_are_refused_under_shard_in_the_first_step(tmp_path):
    for found in on_ranks(2, tmp_path, told, "sparse", {"shard": "zero3"}):
        assert "has sparse gradients in words, and `shard` needs dense ones" in found["told"]
        assert not found["steps"]


@pytest.mark.proof
def test_sparse_gradients_train_without_shard(tmp_path):
    for found in on_ranks(2, tmp_path, told, "sparse", {}):
        assert found["told"] == ""
