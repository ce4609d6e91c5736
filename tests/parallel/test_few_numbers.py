"""A few numbers that ranks tell each other, by messages in small groups, and by a collective in large ones."""

from __future__ import annotations

import pytest
import torch

from hasten.facts.ranks import Ranks
from hasten.parallel.few_numbers import from_each
from ranks import on_ranks
from telling_jobs import told


@pytest.mark.parametrize("few", [8, 2], ids=["messages", "collective"])
def test_every_rank_hears_what_each_and_what_one_tells(few, tmp_path):
    for found in on_ranks(3, tmp_path, told, few):
        assert found == [[[0, 2.5], [1, 2.5], [2, 2.5]], [7, 7], [2]]


def test_who_is_alone_hears_itself():
    alone = Ranks(0, 1, None)
    assert [each.tolist() for each in from_each(torch.ones(2), alone)] == [[1, 1]]
