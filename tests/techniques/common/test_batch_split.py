"""Accumulation and microbatch split a batch; few_samples cuts one."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from hasten.errors import JobError, PlanError
from hasten.facts.choice import Choice, Preserves
from hasten.techniques import accumulation, microbatch
from hasten.techniques.accumulation import size_of_part
from hasten.techniques.common.batch_split import few_samples, normalizes_by_batch, split_preserves
from hasten.techniques.contract import No
from hasten.techniques.microbatch import halves
from support import setup_of

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
def test_a_batch_is_never_split_into_more_parts_than_requested(batch_size, parts):
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


@pytest.mark.trap(30)
@BOTH
def test_with_batch_norm_the_parts_preserve_only_statistics_and_a_notice_says_so(technique):
    target = setup(with_batch_norm())
    choice = technique.candidates(target)[0]
    assert choice.preserves is Preserves.STATISTICS
    technique.apply(target, choice)
    assert len(target.notices) == 1
    assert "batch norm sees 16 samples" in target.notices[0]


@pytest.mark.trap(30)
@BOTH
def test_a_frozen_batch_norm_preserves_rounding(technique):
    model = with_batch_norm()
    model[1].eval()
    target = setup(model)
    choice = technique.candidates(target)[0]
    assert choice.preserves is Preserves.ROUNDING
    technique.apply(target, choice)
    assert target.notices == []


@pytest.mark.parametrize(
    "norm", [nn.BatchNorm1d(3), nn.BatchNorm2d(3), nn.SyncBatchNorm(3), nn.LazyBatchNorm1d(), nn.BatchNorm3d(3)]
)
def test_every_batch_norm_is_found_and_no_norm_of_single_samples(norm):
    assert normalizes_by_batch(nn.Sequential(nn.Sequential(norm)))
    assert not normalizes_by_batch(nn.Sequential(nn.LayerNorm(3), nn.GroupNorm(1, 3), nn.InstanceNorm1d(3)))


@BOTH
@pytest.mark.parametrize("value", [0, -1, True, 1.5, "2", 33])
def test_values_that_split_nothing_are_refused(technique, value):
    with pytest.raises(PlanError, match=r"batch of 32"):
        applied(technique, value, setup())


@BOTH
def test_it_does_not_apply_without_a_batch_to_split(technique):
    assert technique.applies(setup(batch_size=1)) == No("a batch of one sample cannot be split")
    assert isinstance(technique.applies(setup(train=lambda: None, batch_size=None)), No)


ROWS = torch.arange(12).reshape(4, 3)


@pytest.mark.parametrize(("samples", "chosen"), [(2, [0, 1]), (4, [0, 1, 2, 3]), (6, [0, 1, 2, 3, 0, 1])])
def test_the_first_samples_are_used_and_repeated_where_there_are_fewer(samples, chosen):
    assert torch.equal(few_samples(ROWS, samples), ROWS[chosen])


def test_tensors_with_as_many_rows_are_cut_and_the_rest_stays():
    batch = {"words": ROWS, "labels": torch.arange(4), "table": torch.eye(3), "scale": torch.tensor(2.0), "name": "b"}
    found = few_samples(batch, 2)
    assert [len(found[name]) for name in ("words", "labels", "table")] == [2, 2, 3]
    assert (found["scale"], found["name"]) == (2.0, "b")


@pytest.mark.parametrize("batch", ["text", [1, 2], torch.tensor(1.0), torch.empty(0, 3)], ids=str)
def test_a_batch_without_rows_is_refused(batch):
    with pytest.raises(JobError, match="no tensor has a row for each sample"):
        few_samples(batch, 2)


class LossModule(nn.Module):
    def forward(self, model, batch):
        return model(batch[0]).square().mean()


def test_only_a_loss_that_has_state_changes_it():
    keeping, stateless = LossModule(), LossModule()
    keeping.register_buffer("mean", torch.zeros(()))
    assert split_preserves(setup(loss=keeping)) is Preserves.TRAINING
    assert split_preserves(setup(loss=stateless)) is Preserves.ROUNDING
