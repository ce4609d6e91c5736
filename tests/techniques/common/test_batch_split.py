"""Accumulation and microbatch: two ways to say into which parts a batch is taken."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from hasten.errors import PlanError
from hasten.facts.choice import Choice, Preserves
from hasten.techniques import accumulation, microbatch
from hasten.techniques.accumulation import size_of_part
from hasten.techniques.common.batch_split import normalizes_by_batch
from hasten.techniques.contract import No, Yes
from hasten.techniques.microbatch import halves
from support import laptop, setup_of

BOTH = pytest.mark.parametrize("technique", [accumulation.TECHNIQUE, microbatch.TECHNIQUE], ids=lambda each: each.name)


def setup(model=None, **job):
    return setup_of(model or nn.Linear(6, 3), None, **({"batch_size": 32} | job))


def applied(technique, value, target):
    choice = Choice(technique=technique.name, value=value, preserves=Preserves.ROUNDING)
    technique.apply(target, choice)
    return target.step.microbatch_size


def with_batch_norm():
    return nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(3))


@given(batch_size=st.integers(1, 10_000), parts=st.integers(1, 10_000))
def test_a_batch_is_never_taken_in_more_parts_than_asked_for(batch_size, parts):
    size = size_of_part(batch_size, parts)
    assert 1 <= size <= batch_size
    assert -(-batch_size // size) <= parts


@given(batch_size=st.integers(1, 1 << 20))
def test_halving_ends_with_single_samples(batch_size):
    sizes = halves(batch_size)
    assert sizes == sorted(set(sizes), reverse=True)
    assert all(1 <= size < batch_size for size in sizes)
    assert batch_size == 1 or sizes[-1] == 1


def test_the_microbatch_is_set_and_the_batch_stays():
    target = setup(batch_size=10)
    assert applied(accumulation.TECHNIQUE, 4, target) == 3
    assert target.job.batch_size == 10
    assert applied(microbatch.TECHNIQUE, 5, setup(batch_size=10)) == 5


@BOTH
def test_a_proposal_is_one_that_can_be_applied(technique):
    for choice in technique.candidates(setup(), laptop()):
        target = setup()
        technique.apply(target, choice)
        assert 1 <= target.step.microbatch_size < 32
        assert (choice.preserves, target.notices) == (Preserves.ROUNDING, [])


@pytest.mark.trap(30)
@BOTH
def test_with_batch_norm_the_parts_are_not_equal_to_the_whole_and_that_is_said(technique):
    target = setup(with_batch_norm())
    choice = technique.candidates(target, laptop())[0]
    assert choice.preserves is Preserves.STATISTICS
    technique.apply(target, choice)
    assert len(target.notices) == 1
    assert "batch norm sees 16 samples" in target.notices[0]


@pytest.mark.trap(30)
@BOTH
def test_a_frozen_batch_norm_does_not_mind(technique):
    model = with_batch_norm()
    model[1].eval()
    target = setup(model)
    choice = technique.candidates(target, laptop())[0]
    assert choice.preserves is Preserves.ROUNDING
    technique.apply(target, choice)
    assert target.notices == []


@pytest.mark.parametrize(
    "norm", [nn.BatchNorm1d(3), nn.BatchNorm2d(3), nn.SyncBatchNorm(3), nn.LazyBatchNorm1d(), nn.BatchNorm3d(3)]
)
def test_every_batch_norm_is_found(norm):
    assert normalizes_by_batch(nn.Sequential(nn.Sequential(norm)))


@pytest.mark.parametrize("norm", [nn.LayerNorm(3), nn.GroupNorm(1, 3), nn.InstanceNorm1d(3)])
def test_norms_of_single_samples_are_not(norm):
    assert not normalizes_by_batch(nn.Sequential(norm))


@BOTH
@pytest.mark.parametrize("value", [0, -1, True, 1.5, "2", 33])
def test_what_splits_nothing_is_refused(technique, value):
    with pytest.raises(PlanError, match=r"for a batch of 32\n.* to 3"):
        applied(technique, value, setup())


def test_the_whole_batch_is_no_part():
    with pytest.raises(PlanError, match="from 1 to 31"):
        applied(microbatch.TECHNIQUE, 32, setup())
    with pytest.raises(PlanError, match="from 2 to 32"):
        applied(accumulation.TECHNIQUE, 1, setup())


def test_a_batch_is_split_once():
    target = setup()
    applied(accumulation.TECHNIQUE, 2, target)
    with pytest.raises(PlanError, match="already taken in parts of 16"):
        applied(microbatch.TECHNIQUE, 8, target)


@BOTH
def test_the_batch_size_may_be_a_loaders(technique):
    loader = DataLoader(TensorDataset(torch.zeros(8, 6)), batch_size=4)
    target = setup(train=loader, batch_size=None)
    target.batch_size = loader.batch_size  # as opening the data finds it
    assert technique.applies(target, laptop()) == Yes()
    assert applied(technique, 2, target) == 2


@BOTH
def test_it_does_not_apply_without_a_batch_to_split(technique):
    assert technique.applies(setup(batch_size=1), laptop()) == No("a batch of one sample cannot be split")
    assert isinstance(technique.applies(setup(train=lambda: None, batch_size=None), laptop()), No)
