"""When a batch that does not fit into memory is taken in smaller parts, and when that would change what is learned."""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import hasten
from hasten.errors import OutOfMemory
from hasten.facts.events import Noticed
from support import small_job
from support.training.collected_events import Collected


class Averaging(nn.Module):
    """A model with a running mean that no class of torch's keeps."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 3)
        self.register_buffer("mean", torch.zeros(6))

    def forward(self, rows: Tensor) -> Tensor:
        self.mean.lerp_(rows.mean(0), 0.5)
        return self.linear(rows - self.mean)


def job(loss: Any, **changes: Any) -> hasten.Job:
    return small_job(**{"model": lambda: nn.Linear(6, 3), "loss": loss, "log_every": 1} | changes)


def failing(call: int, loss: Any) -> Any:
    """A loss that runs out of memory in one of its calls, when it has computed."""
    calls = count(1)

    def counted(model: nn.Module, batch: Any) -> Tensor:
        found = loss(model, batch)
        if next(calls) == call:
            raise torch.OutOfMemoryError("planted")
        return found

    return counted


@pytest.mark.fault("out of device memory mid-run")
@pytest.mark.parametrize("step", [1, 3])
def test_a_window_whose_model_moves_a_buffer_is_not_taken_in_smaller_parts(step):
    loss = failing(step, lambda model, batch: functional.cross_entropy(model(batch[0]), batch[1]))
    with pytest.raises(OutOfMemory, match="changes the buffer 'mean', and would change it once for each part"):
        hasten.train(job(loss, model=Averaging), receivers=[])


@pytest.mark.fault("out of device memory mid-run")
def test_an_evaluation_of_an_average_does_not_make_a_buffer_look_moved():
    class Placed(nn.Linear):
        def __init__(self) -> None:
            super().__init__(6, 3)
            self.register_buffer("positions", torch.ones(6))

        def forward(self, rows: Tensor) -> Tensor:
            return super().forward(rows + self.positions)

    events = Collected()
    loss = failing(8, hasten.supervised(functional.cross_entropy))
    plain = job(loss, model=Placed, average=hasten.ExponentialAverage(decay=0.9))
    rows, targets = plain.train
    hasten.train(replace(plain, valid=(rows[:4], targets[:4]), evaluate_every=2), receivers=[events])
    assert any("microbatches of" in event.text for event in events.events if isinstance(event, Noticed))
