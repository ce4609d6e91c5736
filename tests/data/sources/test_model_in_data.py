"""A data set that uses the model being trained is read between two updates, and never ahead of one."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import ConcatDataset, DataLoader, Dataset, IterableDataset, Subset, default_collate

import hasten
from hasten.entry import prepare
from hasten.errors import PlanError
from hasten.facts.choice import Choice
from hasten.facts.plan import make_plan
from hasten.techniques import device_prefetch, in_memory, loader_workers, persistent_workers, prefetch
from hasten.techniques.contract import No
from support import small_job

policy: Any = None
registry: dict[str, Any] = {}


class Rows(Dataset[Any]):
    """Samples that do not depend on anything; what it is given is only held."""

    def __init__(self, held: Any = None) -> None:
        self.held = held

    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> Any:
        return torch.ones(6), index % 3


class NamesAGlobal(IterableDataset[Any]):
    def __iter__(self) -> Any:
        while True:
            yield torch.ones(6), int(policy(torch.ones(6)).argmax())


class NamesAnEntryOfAGlobal(Rows):
    def __getitem__(self, index: int) -> Any:
        return torch.ones(6), int(registry["policy"](torch.ones(6)).argmax())


class CallsAFunctionOfTheFile(Rows):
    def __getitem__(self, index: int) -> Any:
        return torch.ones(6), best(torch.ones(6))


class Transform:
    def __init__(self, model: Any) -> None:
        self.model = model

    def __call__(self, sample: Any) -> Any:
        return self.model(sample)


def best(row: Any) -> int:
    return int(policy(row).argmax())


def labelled(model: Any, samples: Any) -> Any:
    return default_collate(samples)


def made_for(data_of: Any) -> Any:
    """A job whose data set is made with its model, which everything that is global here holds too."""
    global policy
    policy = registry["policy"] = made = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))
    data = data_of(made)
    given = data if isinstance(data, dict) else {"train": data}
    return small_job(**({"model": lambda: made, "batch_size": 4, "epochs": None, "max_steps": 2} | given))


def local_class(model: Any) -> Any:
    class Local(Rows):
        def __getitem__(self, index: int) -> Any:
            return torch.ones(6), int(model(torch.ones(6)).argmax())

    return Local()


def default_argument(model: Any) -> Any:
    def act(row: Any, by: Any = model) -> Any:
        return by(row)

    return Rows(act)


class MakesBatches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(6, 3)

    def forward(self, rows: Any) -> Any:
        return self.head(rows)

    def mined(self, samples: Any) -> Any:
        rows, labels = default_collate(samples)
        return rows + self.head(rows).mean(), labels


def collated_by_a_method(model: Any) -> Any:
    makes_batches = MakesBatches()
    return {"model": lambda: makes_batches, "train": Rows(), "collate": makes_batches.mined}


def mining(model: Any) -> Any:
    makes_batches = MakesBatches()

    def collate(samples: Any) -> Any:
        return makes_batches.mined(samples)

    return {"model": lambda: makes_batches, "train": Rows(), "collate": collate}


REACHING = {
    "a global": (lambda model: NamesAGlobal(), "NamesAGlobal.__iter__: policy"),
    "an entry of a global": (lambda model: NamesAnEntryOfAGlobal(), r"__getitem__: registry\['policy'\]"),
    "a function of the file": (lambda model: CallsAFunctionOfTheFile(), "best: policy"),
    "an attribute": (Rows, r"\(train.held\)"),
    "a parameter": (lambda model: Rows([*model.parameters()]), r"\(train.held\[0\]\)"),
    "a closure": (local_class, "local_class.<locals>.Local.__getitem__: model"),
    "a default argument": (default_argument, "default_argument.<locals>.act: a default argument"),
    "a partial": (lambda model: Rows(partial(labelled, model)), r"\(train.held.args\[0\]\)"),
    "a part of a data set": (lambda model: Subset(Rows(Transform(model)), range(8)), r"\(train.dataset.held.model\)"),
    "several data sets": (lambda model: ConcatDataset([Rows(), Rows(model)]), r"\(train.datasets\[1\].held\)"),
    "a method of the model, as collate": (collated_by_a_method, r"\(collate.__self__\)"),
    "a function that calls a method of the model, as collate": (mining, "collate: makes_batches"),
}


@pytest.mark.parametrize(("data_of", "where"), REACHING.values(), ids=REACHING)
def test_data_that_use_the_model_are_refused_workers_with_the_place(data_of, where):
    with pytest.raises(PlanError, match=rf"Job.train uses the model that is being trained .*{where}") as refusal:
        prepare(made_for(data_of), make_plan(loader_workers=1))
    assert refusal.value.exit_code == 2
    assert "loader workers would use older weights" in refusal.value.what
    assert "set loader_workers = 0" in refusal.value.fix


def pretrained(model: Any) -> Any:
    vectors = torch.randn(9, 6)
    model.insert(0, nn.Embedding.from_pretrained(vectors, freeze=False))
    return Rows(SimpleNamespace(vectors=vectors))


def frozen(model: Any) -> Any:
    encoder = nn.Linear(6, 5).requires_grad_(False)
    model.insert(0, nn.Sequential(encoder, nn.Linear(5, 6)))
    return Rows(encoder)


class HasAnEncoder(Rows):
    """`policy` here is an attribute, and not the global of this file."""

    def __init__(self) -> None:
        super().__init__()
        self.policy = nn.Linear(6, 3)

    def __getitem__(self, index: int) -> Any:
        return torch.ones(6), int(self.policy(torch.ones(6)).argmax())


class HasSettings(Rows):
    """`policy` here is an attribute of an attribute."""

    def __init__(self) -> None:
        super().__init__(SimpleNamespace(policy="greedy"))

    def __getitem__(self, index: int) -> Any:
        return torch.ones(6), len(self.held.policy) % 3


INDEPENDENT = {
    "an encoder of its own": lambda model: Rows(nn.Linear(6, 3)),
    "an encoder that the model has too, frozen": frozen,
    "an attribute with the name of a global": lambda model: HasAnEncoder(),
    "an attribute of an attribute with the name of a global": lambda model: HasSettings(),
    "vectors that an embedding of the model began with": pretrained,
    "columns": lambda model: (torch.ones(16, 6), torch.zeros(16, dtype=torch.long)),
    "very many samples": lambda model: [(torch.ones(6), 0)] * 100_000,
}


@pytest.mark.parametrize("data_of", INDEPENDENT.values(), ids=INDEPENDENT)
def test_data_that_use_no_parameter_that_is_trained_may_have_workers(data_of):
    with prepare(made_for(data_of), make_plan(loader_workers=1)) as run:
        assert not any("uses the model" in notice for notice in run.notices)


def test_the_workers_of_a_dataloader_are_refused_and_a_plan_without_them_is_not():
    def loaded(model: Any) -> Any:
        return {"train": DataLoader(NamesAGlobal(), batch_size=4, num_workers=1), "batch_size": None}

    with pytest.raises(PlanError, match="uses the model that is being trained"):
        prepare(made_for(loaded))
    with prepare(made_for(loaded), make_plan(loader_workers=0)):
        pass


def test_without_workers_such_data_are_read_with_the_present_weights(tmp_path):
    seen = []

    class Watching(NamesAGlobal):
        def __iter__(self) -> Any:
            while True:
                seen.append(policy[0].weight.detach().clone())
                yield torch.ones(6), 0

    hasten.train(made_for(lambda model: Watching()), run_dir=tmp_path / "run")
    assert not torch.equal(seen[0], seen[-1])


def test_an_evaluation_that_uses_the_model_is_read_without_workers_and_this_is_said():
    with prepare(made_for(lambda model: {"train": Rows(), "valid": Rows(model)}), make_plan(loader_workers=1)) as run:
        (notice,) = (notice for notice in run.notices if "uses the model" in notice)
        assert notice == (
            "valid is read without loader workers: Job.valid uses the model that is being trained (valid.held)"
        )
        assert run.evaluate()


@pytest.mark.parametrize("choice", [{"in_memory": "host"}, {"cache": True}])
def test_such_data_are_not_kept_as_the_first_weights_made_them(choice):
    def augmented(model: Any) -> Any:
        return hasten.Augmented(Rows(model), lambda sample: sample)

    with prepare(made_for(augmented), make_plan(**choice)) as run:
        assert any("uses the model that is being trained" in notice for notice in run.notices)
        assert type(run.built.train.dataset) is hasten.Augmented


def test_a_search_offers_nothing_that_would_read_such_data_ahead():
    with prepare(made_for(Rows)) as run:
        setup = run.setup
        setup.device = torch.device("cuda")
        for technique in (loader_workers, prefetch, persistent_workers, device_prefetch, in_memory):
            answer = technique.TECHNIQUE.applies(setup)
            assert isinstance(answer, No)
            assert "uses the model that is being trained (train.held)" in answer.reason
        with pytest.raises(PlanError, match="copied ahead would use older weights"):
            device_prefetch.TECHNIQUE.apply(setup, Choice(technique="device_prefetch", value=1))
