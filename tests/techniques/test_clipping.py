"""A plan's clipping replaces the job's."""

from __future__ import annotations

import math

import pytest
from torch import nn

from hasten.errors import PlanError
from hasten.facts.choice import Choice, Preserves
from hasten.techniques.clipping import TECHNIQUE
from hasten.techniques.contract import Yes
from support import laptop, setup_of


def applied(value, target=None, **options):
    target = target or setup_of(nn.Linear(6, 3), None)
    choice = Choice(technique="clipping", value=value, preserves=Preserves.TRAINING, options=options)
    TECHNIQUE.apply(target, choice)
    return target.step.clip_norm, target.step.clip_norm_type, target.step.clip_value


def test_a_number_limits_the_euclidean_norm():
    assert applied(1) == (1.0, 2.0, None)


def test_the_norm_can_be_another():
    assert applied(0.5, norm_type=math.inf) == (0.5, math.inf, None)
    assert applied(0.5, kind="norm", norm_type=1) == (0.5, 1.0, None)


def test_elements_can_be_limited_instead():
    assert applied(0.5, kind="value") == (None, 2.0, 0.5)


@pytest.mark.parametrize(
    ("value", "options", "what"),
    [
        (0, {}, "the bound is 0"),
        (-1.0, {}, "the bound is -1.0"),
        (True, {}, "the bound is True"),
        ("1", {}, "the bound is '1'"),
        (math.nan, {}, "the bound is nan"),
        (math.inf, {}, "clips nothing"),
        (1.0, {"norm_type": 0}, "norm_type is 0"),
        (1.0, {"kind": "size"}, "kind is 'size'"),
        (1.0, {"kind": "value", "norm_type": 2.0}, "norm_type has no meaning"),
        (1.0, {"norm": 2.0}, 'has no option "norm"'),
    ],
)
def test_values_that_limit_nothing_are_refused(value, options, what):
    with pytest.raises(PlanError, match=what):
        applied(value, **options)


def test_a_usual_norm_is_proposed_where_the_job_does_not_clip():
    plain, own = setup_of(nn.Linear(6, 3), None), setup_of(nn.Linear(6, 3), None, clip_value=0.1)
    assert TECHNIQUE.applies(plain, laptop()) == TECHNIQUE.applies(own, laptop()) == Yes()
    assert [each.value for each in TECHNIQUE.candidates(plain, laptop())] == [1.0]
    assert TECHNIQUE.candidates(own, laptop()) == []
