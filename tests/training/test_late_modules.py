"""A module that came after the run began is told of, as no checkpoint has it."""

from __future__ import annotations

from copy import deepcopy
from itertools import count
from typing import Any

import pytest
from torch import Tensor, nn
from torch.nn import functional

import hasten
from hasten.facts.events import Noticed
from hasten.training.logs import Collected
from support import small_job


def job(loss: Any, **changes: Any) -> hasten.Job:
    return small_job(**{"model": lambda: nn.Linear(6, 3), "loss": loss, "log_every": 1} | changes)


@pytest.mark.parametrize("kept", [True, False])
def test_a_teacher_that_the_loss_makes_when_it_is_first_called_is_told_of(tmp_path, kept):
    held = list[nn.Module]()

    def loss(model: nn.Module, batch: Any) -> Tensor:
        if not held:
            held.append(nn.Sequential(deepcopy(model)))
        return functional.mse_loss(model(batch[0]), held[0](batch[0]).detach() + 1)

    events = Collected()
    hasten.train(job(loss), run_dir=tmp_path / "run" if kept else None, receivers=[events])
    told = [
        event.text
        for event in events.events
        if isinstance(event, Noticed) and "did not when the run began" in event.text
    ]
    assert [text.partition(",")[0] for text in told] == (["the loss holds loss.held.0 now"] if kept else [])


def test_what_a_loss_makes_late_and_that_holds_nothing_is_not_told_of(tmp_path):
    held = list[nn.Module]()

    def loss(model: nn.Module, batch: Any) -> Tensor:
        if not held:
            held.extend([nn.CrossEntropyLoss(), nn.Sequential(model)])
        return held[0](held[1](batch[0]), batch[1])

    events = Collected()
    hasten.train(job(loss), run_dir=tmp_path / "run", receivers=[events])
    assert not [event for event in events.events if isinstance(event, Noticed)]


def test_a_teacher_that_another_takes_the_place_of_is_told_of_once_when_a_checkpoint_lacks_it(tmp_path):
    class Loss:
        def __init__(self) -> None:
            self.teacher = nn.Linear(6, 3)
            self.calls = count(1)

        def __call__(self, model: nn.Module, batch: Any) -> Tensor:
            if next(self.calls) == 3:
                self.teacher = deepcopy(model)
            return functional.mse_loss(model(batch[0]), self.teacher(batch[0]).detach() + 1)

    events = Collected()
    hasten.train(job(Loss()), run_dir=tmp_path / "run", receivers=[events], saving=hasten.Saving(every_steps=1))
    told = [event.text for event in events.events if isinstance(event, Noticed) and "did not when" in event.text]
    assert [text.partition(",")[0] for text in told] == ["the loss holds loss.teacher now"]


def test_a_module_that_the_model_makes_late_is_told_of_as_the_models(tmp_path):
    class Growing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.extra = nn.Linear(6, 3), list[nn.Module]()

        def forward(self, rows: Tensor) -> Tensor:
            if not self.extra:
                self.extra.append(nn.Linear(6, 3))
            return self.linear(rows) + self.extra[0](rows)

    events = Collected()
    loss = hasten.supervised(functional.cross_entropy)
    hasten.train(job(loss, model=Growing), run_dir=tmp_path / "run", receivers=[events])
    told = [event.text for event in events.events if isinstance(event, Noticed)]
    assert [text.partition(",")[0] for text in told] == ["the model holds model.extra.0 now"]
