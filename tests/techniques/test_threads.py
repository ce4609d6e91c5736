"""Thread counts that are tried beside loader workers."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from hasten.errors import PlanError
from hasten.facts.choice import Choice, Preserves
from hasten.techniques.contract import Yes
from hasten.techniques.threads import TECHNIQUE, thread_counts
from support import laptop, setup_of


def setup_with(cores, workers=0, ranks=1):
    sample = (torch.randn(8, 6), torch.zeros(8, dtype=torch.long))
    setup = setup_of(nn.Linear(6, 3), sample, laptop(cores=cores, ranks=ranks))
    setup.loader.workers = workers
    return setup


def chosen(value):
    return Choice(technique="threads", value=value, preserves=Preserves.ROUNDING)


@given(cores=st.integers(1, 512), workers=st.integers(0, 600))
def test_counts_fall_from_what_the_workers_leave_free_to_one(cores, workers):
    counts = thread_counts(cores, workers)
    assert counts[0] == max(1, cores - workers)
    assert counts[-1] == 1
    assert all(fewer == more // 2 for more, fewer in pairwise(counts))


def test_workers_take_their_cores_before_threads_are_counted():
    assert thread_counts(16, 4) == [12, 6, 3, 1]
    setup = setup_with(cores=16, workers=4)
    setup.process.threads = 3
    assert [choice.value for choice in TECHNIQUE.candidates(setup)] == [12, 6, 1]


def test_ranks_on_one_machine_divide_its_cores():
    setup = setup_with(cores=16, ranks=4)
    setup.process.threads = 3
    assert [choice.value for choice in TECHNIQUE.candidates(setup)] == [4, 2, 1]


def test_the_present_count_is_not_tried_again():
    assert torch.get_num_threads() == 1
    setup = setup_with(cores=2)
    assert TECHNIQUE.applies(setup) == Yes()
    assert [choice.value for choice in TECHNIQUE.candidates(setup)] == [2]


def test_more_threads_than_cores_are_set_with_a_notice():
    setup = setup_with(cores=2)
    TECHNIQUE.apply(setup, chosen(8))
    assert setup.process.threads == 8
    assert setup.notices == ["8 compute threads take turns on 2 cores; fewer may be faster"]


def test_a_count_that_can_only_be_a_mistake_is_refused():
    with pytest.raises(PlanError, match="write 2, the number of cores here"):
        TECHNIQUE.apply(setup_with(cores=2), chosen(1_000_000))
