"""A plan's clipping replaces the job's."""

from __future__ import annotations

import math

import pytest
from torch import nn

from hasten.errors import PlanError
from hasten.facts.choice import Choice, Preserves
from hasten.techniques.clipping import TECHNIQUE
from hasten.techniques.contract import Yes
from support import setup_of


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
    ("value", "options"),
    [
        *((bound, {}) for bound in (0, -1.0, True, "1", math.nan, math.inf)),
        *((1.0, options) for options in ({"norm_type": 0}, {"kind": "size"}, {"norm": 2.0})),
        (1.0, {"kind": "value", "norm_type": 2.0}),
    ],
    ids=str,
)
def test_values_that_limit_nothing_are_refused(value, options):
    with pytest.raises(PlanError, match="write a number above 0; as options kind"):
        applied(value, **options)


def test_a_usual_norm_is_proposed_where_the_job_does_not_clip():
    plain, own = setup_of(nn.Linear(6, 3), None), setup_of(nn.Linear(6, 3), None, clip_value=0.1)
    assert TECHNIQUE.applies(plain) == TECHNIQUE.applies(own) == Yes()
    assert [each.value for each in TECHNIQUE.candidates(plain)] == [1.0]
    assert TECHNIQUE.candidates(own) == []
