"""The technique that keeps decoded samples on disk."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import IterableDataset, Subset

import hasten
from hasten.data.cache.cache_file import Cached
from hasten.errors import DataFailed, PlanError
from hasten.facts.choice import Choice
from hasten.facts.events import Noticed, Preparing, Started
from hasten.facts.plan import make_plan
from hasten.techniques.cache import TECHNIQUE
from hasten.techniques.contract import No, Yes
from hasten.training.run import Run
from support import laptop, setup_of, small_job
from support.data.cached_samples import Grey, jittered
from support.training.collected_events import Collected


def setup_for(train: object):
    return setup_of(nn.Linear(6, 3), None, laptop(), train=train)


def answer(train: object) -> Yes | No:
    setup = setup_for(train)
    return TECHNIQUE.applies(setup)


class Stream(IterableDataset[int]):
    def __iter__(self):
        return iter(range(3))


@pytest.mark.parametrize(
    "train", [hasten.Augmented(Grey(), jittered), Subset(hasten.Augmented(Grey(), jittered), [1, 2])]
)
def test_it_applies_where_the_deterministic_part_is_known(train):
    assert answer(train) == Yes()


@pytest.mark.trap(41)
@pytest.mark.parametrize(
    ("train", "reason"),
    [
        (Grey(), "write hasten.Augmented(dataset, transform)"),
        (Subset(Grey(), [1, 2]), "write hasten.Augmented(dataset, transform)"),
        ((torch.ones(9, 6),), "its samples are columns in memory already"),
        ([1, 2, 3], "its samples are in memory already"),
        (Stream(), "it is a stream"),
    ],
)
def test_it_refuses_with_the_reason(train, reason):
    found = answer(train)
    assert isinstance(found, No)
    assert reason in found.reason


@pytest.mark.parametrize(
    ("value", "cache"),
    [(True, True), ("/fast/disk", Path("/fast/disk")), ("~/caches", Path("/home/someone/caches"))],
)
def test_the_value_is_where_the_cache_is_written(value, cache, monkeypatch):
    monkeypatch.setenv("HOME", "/home/someone")
    setup = setup_for(hasten.Augmented(Grey(), jittered))
    TECHNIQUE.apply(setup, Choice(technique="cache", value=value))
    assert setup.loader.cache == cache
    assert isinstance(TECHNIQUE.applies(setup), No), "it is chosen already"


@pytest.mark.parametrize("choice", [False, 1, "", "relative", "./here", "~nobody-of-this-name/caches"])
def test_any_other_value_is_refused(choice):
    with pytest.raises(PlanError, match="the plan asks for cache"):
        TECHNIQUE.apply(setup_for(Grey()), Choice(technique="cache", value=choice))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(15, 3)

    def forward(self, batch):
        pictures, labels, draws = batch
        inputs = torch.cat((pictures.flatten(1).float() / 255, draws.float()), 1)
        return nn.functional.cross_entropy(self.linear(inputs), labels % 3)


def trained(plan: hasten.Plan | None, **changes) -> dict:
    job = small_job(
        model=Model,
        loss=lambda model, batch: model(batch),
        **{"train": hasten.Augmented(Grey(20), jittered), "valid": hasten.Augmented(Grey(7), jittered)} | changes,
    )
    return dict(hasten.train(job, plan, receivers=[]).weights)


@pytest.mark.trap(41)
def test_a_training_from_the_cache_ends_with_the_same_weights_bit_for_bit(tmp_path):
    plan = make_plan(cache=str(tmp_path / "c"))
    wanted = trained(None)
    for _ in range(2):  # built, and read
        found = trained(plan)
        assert all(found[name].equal(weight) for name, weight in wanted.items())
    assert len([*(tmp_path / "c").glob("*/manifest.json")]) == 2


def test_a_run_reads_from_the_cache_and_says_that_it_built_it(tmp_path):
    job = small_job(
        model=Model, loss=lambda model, batch: model(batch), train=hasten.Augmented(Grey(20), jittered), valid=Grey()
    )
    with Run(job, make_plan(cache=str(tmp_path / "c"))) as run:
        assert type(run.built.train.dataset.dataset) is Cached
        assert [text for text in run.notices if "building a cache of 20 samples" in text]
        assert [text for text in run.notices if "valid is not cached: which part of its samples" in text]
    with Run(job, make_plan(cache=str(tmp_path / "c"))) as run:
        assert not [text for text in run.notices if "building" in text]


def test_data_that_cannot_be_cached_runs_uncached_with_a_notice(tmp_path):
    with Run(small_job(), make_plan(cache=str(tmp_path / "c"))) as run:
        assert [text for text in run.notices if "train is not cached: its samples are columns" in text]
    assert not (tmp_path / "c").exists()


@pytest.mark.trap(41)
def test_a_run_whose_deterministic_part_is_random_ends_before_the_first_step(tmp_path):
    class Drawing(Grey):
        def __getitem__(self, index):
            return torch.rand(2), index

    job = small_job(model=Model, train=hasten.Augmented(Drawing(), jittered))
    with pytest.raises(DataFailed, match="sample 0 draws from torch's global generator"):
        Run(job, make_plan(cache=str(tmp_path / "c")))


def test_receivers_get_events_while_a_cache_is_built(tmp_path):
    watching = Collected()
    job = small_job(
        model=Model, loss=lambda model, batch: model(batch), train=hasten.Augmented(Grey(20), jittered), max_steps=1
    )
    hasten.train(job, make_plan(cache=str(tmp_path / "c")), receivers=[watching])
    kinds = [type(event) for event in watching.events]
    assert kinds[:21] == [Noticed] + [Preparing] * 20
    assert kinds[21] is Started
    assert "building a cache of 20 samples" in watching.events[0].text


def test_receivers_are_closed_when_a_build_fails(tmp_path):
    class Bar(Collected):
        closed = False

        def close(self) -> None:
            self.closed = True

    class Breaking(Grey):
        def __getitem__(self, index):
            if index == 17:
                torch.rand(())
            return super().__getitem__(index)

    bar, job = Bar(), small_job(model=Model, train=hasten.Augmented(Breaking(40), jittered))
    with pytest.raises(DataFailed, match="sample 17 draws"):
        hasten.train(job, make_plan(cache=str(tmp_path / "c")), receivers=[bar])
    assert bar.closed
    assert type(bar.events[-1]) is Preparing
