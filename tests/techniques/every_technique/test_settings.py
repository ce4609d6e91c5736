"""Techniques that write one setting: where they apply, what they write, and why they refuse."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from hasten.techniques import ALL
from hasten.techniques.contract import No, Yes
from hasten.techniques.device_metrics import SELDOM
from support import laptop, setup_of

TECHNIQUES = {technique.name: technique for technique in ALL}
ROWS = (torch.zeros(8, 6), torch.zeros(8, dtype=torch.long))
LOADER = DataLoader(TensorDataset(*ROWS), batch_size=None)


@dataclass(frozen=True)
class Place:
    technique: str
    device: str = "cpu"
    model: Callable[[], nn.Module] = lambda: nn.Linear(6, 3)
    features: tuple[str, ...] = ()
    job: dict[str, Any] = field(default_factory=dict)

    def __str__(self):
        return f"{self.technique} on {self.device}"

    def setup(self):
        machine = laptop(processor_features=frozenset(self.features))
        setup = setup_of(self.model(), ROWS, machine, **self.job)
        setup.device = torch.device(self.device)
        return setup


CUDNN, FLUSH = partial(Place, "cudnn_autotune"), partial(Place, "flush_denormals")
METRICS, EVALUATION = partial(Place, "device_metrics"), partial(Place, "evaluation_batch")


@pytest.mark.parametrize(
    ("place", "setting", "value"),
    [
        *((CUDNN("cuda", partial(kind, 3, 4, 3)), "process.cudnn_benchmark", True) for kind in (nn.Conv1d, nn.Conv3d)),
        (CUDNN("cuda", lambda: nn.Sequential(nn.ConvTranspose2d(3, 4, 3))), "process.cudnn_benchmark", True),
        *(
            (FLUSH(features=each), "process.flush_denormals", True)
            for each in [("sse2", "pni"), ("fp", "asimd"), ()]  # x86, ARM, and a system that lists none
        ),
        *((METRICS(job={"log_every": every}), "step.read_every", SELDOM) for every in (1, SELDOM - 1)),
        (EVALUATION(job={"valid": ROWS}), "evaluation.batch_size", 16),
    ],
    ids=str,
)
def test_where_it_applies_its_first_choice_writes_its_setting(place, setting, value):
    setup, technique = place.setup(), TECHNIQUES[place.technique]
    assert technique.applies(setup) == Yes()
    technique.apply(setup, technique.candidates(setup)[0])
    assert attrgetter(setting)(setup) == value


@pytest.mark.parametrize(
    ("place", "reason"),
    [
        (CUDNN(model=partial(nn.Conv2d, 3, 4, 3)), "cuDNN runs on CUDA devices; this job runs on cpu"),
        (CUDNN("cuda"), "the model has no convolution"),
        (FLUSH(features=("sse2",)), "this CPU has neither SSE3"),
        (FLUSH("cuda", features=("pni",)), "this job runs on cuda"),
        *((METRICS(job={"log_every": each}), f"the job logs every {each} steps") for each in (SELDOM, 500)),
        (EVALUATION(), "the job has no valid data"),
        (EVALUATION(job={"train": LOADER, "valid": ROWS, "batch_size": None}), "write Job.batch_size"),
    ],
    ids=str,
)
def test_elsewhere_it_says_why_not(place, reason):
    verdict = TECHNIQUES[place.technique].applies(place.setup())
    assert isinstance(verdict, No)
    assert reason in verdict.reason


def test_multiples_of_the_training_batch_are_tried_in_evaluations():
    choices = TECHNIQUES["evaluation_batch"].candidates(EVALUATION(job={"valid": ROWS, "batch_size": 12}).setup())
    assert [choice.value for choice in choices] == [24, 48, 96]
