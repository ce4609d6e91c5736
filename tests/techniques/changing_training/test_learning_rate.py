"""A new learning rate keeps the ratios between parameter groups."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from hasten.errors import PlanError
from hasten.facts.choice import Choice, Preserves
from hasten.techniques.contract import No, Yes
from hasten.techniques.learning_rate import TECHNIQUE, set_learning_rate
from support import setup_of

RATES = st.floats(1e-6, 10)


def setup(rate=0.1):
    return setup_of(nn.Linear(6, 3), None, optimizer=lambda params: torch.optim.SGD(params, lr=rate))


def choice(value):
    return Choice(technique="learning_rate", value=value, preserves=Preserves.TRAINING)


@given(present=st.lists(RATES, min_size=1, max_size=4), wanted=RATES)
def test_the_first_rate_is_exact_and_all_ratios_stay(present, wanted):
    groups = [{"params": [torch.zeros(1)], "lr": rate} for rate in present]
    optimizer = torch.optim.SGD(groups)
    set_learning_rate([optimizer], wanted)
    rates = [group["lr"] for group in optimizer.param_groups]
    assert rates[0] == wanted
    assert rates == pytest.approx([wanted * rate / present[0] for rate in present])


def test_a_rate_in_a_tensor_stays_a_tensor_and_is_not_shared():
    shared = torch.tensor(0.1)
    optimizer = torch.optim.Adam([{"params": [torch.zeros(1)]}, {"params": [torch.zeros(1)]}], lr=shared)
    set_learning_rate([optimizer], 0.3)
    assert [group["lr"].item() for group in optimizer.param_groups] == pytest.approx([0.3, 0.3])
    assert shared.item() == pytest.approx(0.1)


@pytest.mark.parametrize("value", [0, -0.1, True, "high", float("nan"), float("inf"), 1e300])
def test_a_value_that_is_not_a_rate_is_refused(value):
    with pytest.raises(PlanError, match="write a number above 0"):
        TECHNIQUE.apply(setup(), choice(value))


def test_neighbours_of_the_present_rate_are_proposed():
    assert TECHNIQUE.applies(setup()) == Yes()
    assert [each.value for each in TECHNIQUE.candidates(setup(0.1))] == [0.2, 0.05]


def test_it_does_not_apply_where_there_is_no_ratio_to_keep():
    assert isinstance(TECHNIQUE.applies(setup(0.0)), No)
    with pytest.raises(PlanError, match="rate is 0"):
        set_learning_rate([torch.optim.SGD([torch.zeros(1)], lr=0.0)], 0.1)
