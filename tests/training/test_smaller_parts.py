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
from hasten.training.logs import Collected
from support import small_job


class Centred(nn.Module):
    """A loss with a running centre of its own, as DINO's: a buffer that another takes the place of in each call."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("centre", torch.zeros(3))

    def forward(self, prediction: Tensor, target: Tensor) -> Tensor:
        self.centre = self.centre * 0.5 + prediction.detach().mean(0) * 0.5
        return functional.cross_entropy(prediction - self.centre, target)


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
def test_a_window_whose_loss_moves_a_buffer_is_not_taken_in_smaller_parts(step):
    with pytest.raises(OutOfMemory, match="moves 'centre', and would move it once for each part"):
        hasten.train(job(failing(step, hasten.supervised(Centred()))), receivers=[])


@pytest.mark.fault("out of device memory mid-run")
@pytest.mark.parametrize("step", [1, 3])
def test_a_window_whose_model_moves_a_buffer_is_not_taken_in_smaller_parts(step):
    loss = failing(step, lambda model, batch: functional.cross_entropy(model(batch[0]), batch[1]))
    with pytest.raises(OutOfMemory, match="moves 'mean', and would move it once for each part"):
        hasten.train(job(loss, model=Averaging), receivers=[])


@pytest.mark.fault("out of device memory mid-run")
@pytest.mark.parametrize("step", [1, 3])
def test_a_window_whose_loss_makes_parameters_is_not_taken_in_smaller_parts(step):
    bank = nn.ParameterList([torch.ones(3)])

    def loss(model: nn.Module, batch: Any) -> Tensor:
        bank.append(nn.Parameter(bank[-1].detach() * 0.9))
        return functional.cross_entropy(model(batch[0]) * bank[-1], batch[1])

    with pytest.raises(OutOfMemory, match="would move it once for each part"):
        hasten.train(job(failing(step, loss)), receivers=[])


@pytest.mark.parametrize("layout", ["to_sparse", "to_sparse_csr"])
@pytest.mark.filterwarnings("ignore:Sparse")
def test_a_sparse_parameter_of_the_loss_that_stands_still_is_not_taken_for_moved(layout, tmp_path):
    held = nn.Module()
    held.laplacian = nn.Parameter(getattr(torch.eye(3), layout)(), requires_grad=False)

    def loss(model: nn.Module, batch: Any) -> Tensor:
        return functional.cross_entropy((held.laplacian @ model(batch[0]).T).T, batch[1])

    events = Collected()
    plain = job(failing(1, loss))
    told = replace(plain, valid=plain.train, evaluate_every=1)
    hasten.train(told, run_dir=tmp_path / "run", receivers=[events])
    assert any("microbatches of" in event.text for event in events.events if isinstance(event, Noticed))


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


@pytest.mark.fault("out of device memory mid-run")
def test_a_window_whose_loss_normalizes_by_batch_is_not_taken_in_smaller_parts():
    norm = nn.BatchNorm1d(3, affine=False, track_running_stats=False)
    loss = failing(1, lambda model, batch: functional.cross_entropy(norm(model(batch[0])), batch[1]))
    with pytest.raises(OutOfMemory, match="batch norm would see other batches"):
        hasten.train(job(loss), receivers=[])
    norm.eval()  # it normalizes by the batch all the same, as it has nothing else
    again = failing(1, lambda model, batch: norm(model(batch[0])).square().mean())
    with pytest.raises(OutOfMemory, match="batch norm would see other batches"):
        hasten.train(job(again), receivers=[])


class Counting(nn.Linear):
    """It counts its calls in a plain number, which is not looked after."""

    calls = 0

    def __init__(self) -> None:
        super().__init__(6, 3)

    def forward(self, rows: Tensor) -> Tensor:
        self.calls += 1
        return super().forward(rows) / self.calls


@pytest.mark.fault("out of device memory mid-run")
@pytest.mark.parametrize("model", [Counting, lambda: nn.Linear(6, 3)])
def test_a_split_tells_which_modules_remember_something_and_may_count_its_parts(model):
    events = Collected()
    loss = failing(3, lambda model, batch: functional.cross_entropy(model(batch[0]), batch[1]))
    hasten.train(job(loss, model=model), receivers=[events])
    (told,) = [event.text for event in events.events if isinstance(event, Noticed)]
    assert "same updates up to rounding where the loss adds up single samples" in told
    assert ("kept in attributes of Counting has changed" in told) == (model is Counting)
