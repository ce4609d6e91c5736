"""What optimizers keep for each parameter, by one step of them on stand-ins."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from hasten.techniques.setup import OptimizerOptions
from hasten.tuning.mesh.mesh_needs import state_bytes
from support.tune.mesh_jobs import mesh_job

FLOAT = 4  # bytes
SHAPE = 300, 200


def kept(optimizer: Callable[[Any], Any], **changes: Any) -> dict[str, float]:
    model = nn.Linear(*SHAPE)
    return state_bytes(mesh_job(optimizer=optimizer, **changes), model, OptimizerOptions())


def really_kept(optimizer: Callable[[Any], torch.optim.Optimizer]) -> int:
    model = nn.Linear(*SHAPE)
    made = optimizer(model.parameters())
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    made.step()
    return sum(
        each.nbytes for state in made.state.values() for each in state.values() if isinstance(each, torch.Tensor)
    )


@pytest.mark.parametrize(
    "optimizer",
    [
        lambda given: torch.optim.SGD(given, lr=0.1),
        lambda given: torch.optim.SGD(given, lr=0.1, momentum=0.9),
        lambda given: torch.optim.AdamW(given, amsgrad=True),
        lambda given: torch.optim.Adafactor(given),
    ],
    ids=["sgd", "momentum", "amsgrad", "factors"],
)
def test_it_is_what_the_optimizer_keeps_for_the_parameters_themselves(optimizer):
    assert sum(kept(optimizer).values()) == really_kept(optimizer)


def test_what_the_job_gives_no_optimizer_has_no_state():
    found = kept(lambda given: torch.optim.AdamW(given), parameters=lambda model: [model.weight])
    assert found == {"weight": 2 * FLOAT * 300 * 200 + FLOAT, "bias": 0}
