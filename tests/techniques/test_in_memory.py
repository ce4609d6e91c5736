"""The technique that holds all samples as columns in memory."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.data import default_collate

import hasten
from hasten.errors import PlanError
from hasten.facts.choice import Choice
from hasten.facts.machine import Machine
from hasten.facts.plan import make_plan
from hasten.techniques.contract import No
from hasten.techniques.in_memory import TECHNIQUE
from hasten.training.run import Run
from support import laptop, setup_of, small_job
from support.data.cached_samples import Grey, jittered


class Steady(Grey):
    steady_reason = "its pixels are its number"


class Words(Steady):
    steady_reason = "its words are always the same"

    def __getitem__(self, index):
        return "a word", index


CARD = {"accelerator": "test card", "accelerators": 1}


def setup_on(machine: Machine, train: object):
    sample = default_collate([train[index] for index in range(8)]) if not isinstance(train, tuple) else train
    setup = setup_of(nn.Linear(6, 3), sample, machine, train=train)
    setup.device = torch.device(machine.device)
    return setup


def values(machine: Machine, train: object) -> list[object]:
    setup = setup_on(machine, train)
    if isinstance(TECHNIQUE.applies(setup), No):
        return []
    return [choice.value for choice in TECHNIQUE.candidates(setup)]


def reason(machine: Machine, train: object) -> str:
    found = TECHNIQUE.applies(setup_on(machine, train))
    assert isinstance(found, No)
    return found.reason


ROWS = (torch.zeros(1000, dtype=torch.uint8),)


@pytest.mark.parametrize(("memory", "proposed"), [(4000, ["device"]), (3999, [])])
def test_columns_go_to_the_device_where_they_take_a_quarter_of_its_memory_or_less(memory, proposed):
    assert values(laptop(**CARD, accelerator_memory_bytes=memory), ROWS) == proposed


def test_a_refusal_for_their_size_has_the_arithmetic():
    machine = laptop(**CARD, accelerator_memory_bytes=3 << 30)
    big = (torch.zeros(1, dtype=torch.uint8).expand(1 << 30),)
    assert reason(machine, big) == (
        "all samples take 1.00 GiB, and the share of the device's memory that they may take is "
        "0.25 × 3.00 GiB = 768 MiB"
    )


@pytest.mark.parametrize(("memory", "proposed"), [(9 * (12 + 8) * 2, ["host"]), (9 * (12 + 8) * 2 - 1, [])])
def test_samples_become_columns_on_the_host_where_they_take_half_of_its_memory_or_less(memory, proposed):
    assert values(laptop(memory_bytes=memory), Steady(9)) == proposed


def test_with_an_accelerator_its_memory_comes_first():
    assert values(laptop(**CARD, accelerator_memory_bytes=1 << 30), Steady()) == ["device", "host"]


@pytest.mark.parametrize(
    ("train", "words"),
    [
        (ROWS, "columns in memory already, and this job runs on the CPU"),
        (Grey(), "its samples may be different each time"),
        (hasten.Augmented(Grey(), jittered), "its samples may be different each time"),
        (Words(), "contain objects that are not tensors"),
    ],
    ids=["columns", "unsaid", "Augmented", "words"],
)
def test_on_a_laptop_it_refuses_with_the_reason(train, words):
    assert words in reason(laptop(), train)


def test_it_sets_the_place_and_the_share():
    setup = setup_on(laptop(), Steady())
    TECHNIQUE.apply(setup, Choice(technique="in_memory", value="host", options={"share": 0.75}))
    assert (setup.loader.in_memory, setup.loader.in_memory_share) == ("host", 0.75)


@pytest.mark.parametrize("options", [{"share": 0}, {"share": 1.5}, {"share": True}, {"share": "all"}, {"part": 0.5}])
def test_any_other_option_is_refused(options):
    with pytest.raises(PlanError, match="write share = a number above 0"):
        TECHNIQUE.apply(setup_on(laptop(), ROWS), Choice(technique="in_memory", value="host", options=options))


def test_a_training_from_memory_ends_with_the_same_weights_bit_for_bit():
    def weights(plan: hasten.Plan | None) -> dict:
        job = small_job(
            model=lambda: nn.Linear(12, 3),
            loss=lambda model, batch: nn.functional.cross_entropy(model(batch[0].flatten(1) / 255), batch[1] % 3),
            train=Steady(20),
            valid=Steady(7),
        )
        return dict(hasten.train(job, plan, receivers=[]).weights)

    wanted, found = weights(None), weights(make_plan(in_memory="host"))
    assert all(found[name].equal(weight) for name, weight in wanted.items())


def test_evaluation_data_that_does_not_fit_stays_where_it_is_with_a_notice():
    class Large(Steady):
        def __len__(self):
            return 10**15

    with Run(small_job(train=Steady(20), valid=Large()), make_plan(in_memory="host")) as run:
        assert run.built.train.gathers
        assert [text for text in run.notices if "valid is not held in memory: all samples take" in text]


@pytest.mark.gpu
def test_from_the_device_s_memory_training_ends_with_the_same_weights_bit_for_bit():
    wanted = hasten.train(small_job(), receivers=[]).weights
    found = hasten.train(small_job(), make_plan(in_memory="device"), receivers=[]).weights
    assert all(found[name].equal(weight) for name, weight in wanted.items())
