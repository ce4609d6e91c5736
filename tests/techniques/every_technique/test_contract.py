"""What every technique in ALL promises, checked at the places where it applies.

A new technique is checked as soon as ALL lists it. If it applies at none of the PLACES below, the first test fails: add
a place where it applies.
"""

from __future__ import annotations

import atexit
import importlib
import os
import random
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from operator import attrgetter
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from textwrap import dedent
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import tomlkit
import torch
from torch import nn

from hasten.data.images.crops import RandomResizedCrop
from hasten.data.images.image_folder import ImageFolder
from hasten.data.sources.augmented import Augmented
from hasten.errors import PlanError
from hasten.facts.choice import Choice, Preserves
from hasten.facts.machine import Machine
from hasten.facts.plan_file import plan_from_toml
from hasten.facts.ranks import ALONE, Ranks
from hasten.facts.techniques.stage import Stage
from hasten.facts.techniques.symptom import Symptom
from hasten.techniques import ALL
from hasten.techniques.contract import No, Technique, Yes
from hasten.techniques.setup import Setup
from support import laptop, setup_of
from support.data.image_cases import photos

HEADINGS = ("What it does: ", "Why it is faster: ", "When it loses: ", "What it changes: ")
PROMISE = re.compile(r"\d\s*(×|x\b|%|percent\b|times\b|-?fold\b)", re.IGNORECASE)
NONSENSE = ("no such value", -1.5, [], ["no such value"])


class Rows(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(6, 8), nn.LayerNorm(8), nn.GELU(), nn.Dropout(0.5), nn.Linear(8, 3))


class Wide(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 3))


class Deep(nn.Sequential):
    """Two blocks that are repeated."""

    def __init__(self) -> None:
        blocks = [nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 8)) for _ in range(2)]
        super().__init__(nn.Linear(6, 8), nn.Sequential(*blocks), nn.Linear(8, 3))


class Images(nn.Module):
    """Two blocks of convolution, batch norm and activation, with the biases that the norms make useless."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = self._block(3, 4), self._block(4, 4)
        self.head = nn.Linear(4, 3)

    @staticmethod
    def _block(inputs: int, outputs: int) -> nn.Sequential:
        return nn.Sequential(nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU())

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.head(self.second(self.first(images)).mean((2, 3)))


class Read:
    def __init__(self, *columns: torch.Tensor) -> None:
        self.columns = columns

    def __len__(self) -> int:
        return len(self.columns[0])

    def __getitem__(self, index: int) -> list[torch.Tensor]:
        return [column[index] for column in self.columns]


LABELS = torch.arange(16) % 3
ROWS, IMAGES = (torch.ones(16, 6), LABELS), (torch.ones(16, 3, 8, 8), LABELS)
PROCESSOR = frozenset({"pni", "avx512_bf16", "amx_bf16"})


def card(*capability: int) -> Machine:
    return laptop(
        accelerator="test card",
        accelerators=1,
        accelerator_memory_bytes=8 << 30,
        compute_capability=capability,
        processor_features=PROCESSOR,
    )


@dataclass(frozen=True)
class Place:
    """Where a technique is asked: a job on a machine. Machines with a card are records; nothing runs on them."""

    machine: Machine
    model: Callable[[], nn.Module]
    data: tuple[torch.Tensor, torch.Tensor]
    job: dict[str, Any] = field(default_factory=dict)
    workers: int = 0  # that read the data ahead
    ranks: Ranks = ALONE
    as_given: Callable[[Any], Any] = lambda data: data  # the job's train, made of these columns

    def setup(self) -> Setup:
        torch.manual_seed(0)
        sample = tuple(part[:8] for part in self.data)
        setup = setup_of(self.model(), sample, self.machine, train=self.as_given(self.data), **self.job)
        setup.device = torch.device(self.machine.device)
        setup.loader.workers, setup.ranks = self.workers, self.ranks
        return setup


def in_two_parts(columns: Any) -> Augmented:
    """A data set that is read sample by sample, and changed anew each time."""
    return Augmented(Read(*columns), tuple)


@cache
def in_files(columns: Any) -> ImageFolder:
    """Sixteen pictures in three class folders."""
    folder = Path(mkdtemp(prefix="hasten-test-"))
    atexit.register(rmtree, folder)
    photos(folder, count=16)
    return ImageFolder(folder, RandomResizedCrop(8))


PLACES = {
    "rows, no evaluation": Place(laptop(cores=1), Rows, ROWS, {"log_every": 500}),
    "images, evaluated": Place(
        laptop(cores=8, processor_features=PROCESSOR), Images, IMAGES, {"valid": IMAGES, "log_every": 1}
    ),
    "rows on an old processor": Place(laptop(processor_features=frozenset({"sse2"})), Rows, ROWS, {"valid": ROWS}),
    "rows on an old card": Place(card(6, 1), Rows, ROWS, {"valid": ROWS}),
    "images on a card": Place(card(9, 0), Images, IMAGES, {"log_every": 10}),
    "picture files for a card": Place(card(9, 0), Images, IMAGES, as_given=in_files),
    "images, changed anew each time": Place(laptop(), Images, IMAGES, as_given=in_two_parts),
    "images, read by workers": Place(laptop(), Images, IMAGES, workers=2, as_given=in_two_parts),
    "rows, on two processes": Place(laptop(), Rows, ROWS, ranks=Ranks(0, 2)),
    "rows through wide layers, on two processes": Place(laptop(), Wide, ROWS, ranks=Ranks(0, 2)),
    "rows through repeated blocks, on two processes": Place(laptop(), Deep, ROWS, ranks=Ranks(0, 2)),
}
ASKS_THE_DEVICE = {"fused_optimizer"}  # tries its operation on the device, so the record of a card is not enough

PROPOSES_NOTHING = {"stop_at"}  # the right value is known only after a full run


on_every_technique = pytest.mark.parametrize("technique", ALL, ids=attrgetter("name"))


@cache
def places_of(technique: Technique) -> dict[str, Place]:
    """Where it applies."""
    found = PLACES.items()
    if technique.name in ASKS_THE_DEVICE and not torch.cuda.is_available():
        found = [(name, place) for name, place in found if not place.machine.accelerator]
    return {name: place for name, place in found if isinstance(technique.applies(place.setup()), Yes)}


def shapes(weights: Mapping[str, torch.Tensor]) -> dict[str, tuple[torch.Size, torch.dtype]]:
    return {name: (weight.shape, weight.dtype) for name, weight in weights.items()}


def evaluated(setup: Setup) -> torch.Tensor:
    with torch.inference_mode():
        return setup.model.eval()(setup.sample[0])


def global_state() -> dict[str, Any]:
    """What other code in the process would notice."""
    cudnn: Any = torch.backends.cudnn
    return {
        "threads": (torch.get_num_threads(), torch.get_num_interop_threads()),
        "dtype": torch.get_default_dtype(),
        "device": torch.get_default_device(),
        "cudnn": (cudnn.enabled, cudnn.benchmark, cudnn.deterministic, cudnn.allow_tf32),
        "matmul": torch.get_float32_matmul_precision(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "gradients": (torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.is_anomaly_enabled()),
        "autocast": (torch.is_autocast_enabled("cpu"), torch.is_autocast_enabled("cuda")),
        "denormals": (torch.ones(1, dtype=torch.int32).view(torch.float32) * 1.0).view(torch.int32).item(),
        "environment": dict(os.environ),
        "random": (
            torch.get_rng_state().numpy().tobytes(),
            random.getstate(),
            [part.tobytes() if isinstance(part, np.ndarray) else part for part in np.random.get_state()],
        ),
    }


@on_every_technique
def test_it_applies_at_one_of_the_places_and_proposes_choices_without_changing_the_setup(technique):
    assert places_of(technique)
    for name, place in places_of(technique).items():
        setup, untouched = place.setup(), place.setup()
        technique.applies(setup)
        choices = technique.candidates(setup)
        assert bool(choices) is (technique.name not in PROPOSES_NOTHING), name
        assert {choice.technique for choice in choices} <= {technique.name}
        assert all(isinstance(choice.preserves, Preserves) for choice in choices)
        assert len({str(choice) for choice in choices}) == len(choices), name
        assert all(is_named(choice.value, technique.values) for choice in choices)
        for part in ("process", "loader", "optimizer", "schedule", "step", "compile", "evaluation", "notices"):
            assert getattr(setup, part) == getattr(untouched, part)
        assert setup.to_job_weights == []
        weights = setup.model.state_dict()
        assert all(weights[key].equal(weight) for key, weight in untouched.model.state_dict().items())


def is_named(value: Any, values: str) -> bool:
    if isinstance(value, bool | str):
        return tomlkit.item(value).as_string() in values
    return ("a whole number" if isinstance(value, int) else "a number") in values


@on_every_technique
def test_elsewhere_it_gives_a_reason(technique):
    for name in PLACES.keys() - places_of(technique).keys():
        place = PLACES[name]
        if technique.name in ASKS_THE_DEVICE and place.machine.accelerator and not torch.cuda.is_available():
            continue
        verdict = technique.applies(place.setup())
        assert isinstance(verdict, No)
        assert verdict.reason.strip(), name


@on_every_technique
def test_it_is_named_after_its_file_and_its_manual_has_every_heading_and_promises_no_speed(technique):
    module: ModuleType = importlib.import_module(f"hasten.techniques.{technique.name}")
    assert module.TECHNIQUE is technique
    assert isinstance(technique.stage, Stage)
    assert isinstance(technique.treats, Symptom)
    assert technique.source.startswith("https://")
    assert technique.costs
    assert all(isinstance(cost, str) and cost for cost in technique.costs)
    assert technique.headline.endswith(".")
    found = [line.partition(": ")[0] + ": " for line in technique.manual.splitlines() if line.startswith(HEADINGS)]
    assert found == list(HEADINGS)
    assert PROMISE.search(technique.manual) is None


@on_every_technique
def test_the_example_of_its_manual_is_a_plan_with_a_choice_of_it(technique):
    _, _, example = technique.manual.partition("\nExample:\n\n")
    plan = plan_from_toml(dedent(example), known_techniques={technique.name})
    assert [planned.choice.technique for planned in plan.choices] == [technique.name]


@on_every_technique
def test_a_choice_changes_nothing_but_the_setup_and_its_weights_map_to_the_jobs_own_form(technique):
    for name, place in places_of(technique).items():
        for choice in technique.candidates(place.setup()):
            setup, untouched = place.setup(), place.setup()
            before = global_state()
            technique.apply(setup, choice)
            assert global_state() == before, name
            weights = dict(setup.model.state_dict())
            for to_job in reversed(setup.to_job_weights):
                weights = to_job(weights)
            assert shapes(weights) == shapes(untouched.model.state_dict())
            untouched.model.load_state_dict(weights)
            torch.testing.assert_close(evaluated(setup), evaluated(untouched))


@on_every_technique
def test_a_value_that_makes_no_sense_is_refused(technique):
    place = next(iter(places_of(technique).values()))
    for value in NONSENSE:
        choice = Choice(technique=technique.name, value=value, preserves=Preserves.TRAINING)
        with pytest.raises(PlanError) as caught:
            technique.apply(place.setup(), choice)
        assert caught.value.what
        assert caught.value.fix
