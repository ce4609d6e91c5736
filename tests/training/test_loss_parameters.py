"""Parameters of modules that only the loss holds go on as they were, once something has moved them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import hasten
from going_on import check_goes_on
from hasten.training.loss_parameters import LossParameters
from support import small_job


def following(write: Any) -> Any:
    """A loss with a teacher that follows the model."""
    teacher = nn.Linear(6, 3)
    with torch.no_grad():
        teacher.weight.fill_(0.5)
        teacher.bias.fill_(0.0)

    def loss(model: nn.Module, batch: Any) -> Tensor:
        prediction = model(batch[0])
        with torch.no_grad():
            aim = functional.softmax(teacher(batch[0]), dim=1)
            for mine, own in zip(teacher.parameters(), model.parameters(), strict=True):
                write(mine, own)
        return functional.cross_entropy(prediction, aim) + functional.cross_entropy(prediction, batch[1])

    return loss


WRITTEN = {
    "in place": lambda mine, own: mine.lerp_(own, 0.3),
    "past the graph": lambda mine, own: mine.data.mul_(0.7).add_(own.data, alpha=0.3),
    "anew": lambda mine, own: setattr(mine, "data", 0.7 * mine.data + 0.3 * own.data),
}


@pytest.mark.trap(36)
@pytest.mark.parametrize("how", WRITTEN)
def test_a_teacher_that_only_the_loss_holds_goes_on_exactly(tmp_path, how):
    check_goes_on(lambda: small_job(loss=following(WRITTEN[how])), tmp_path)


def doubled(teacher: Any) -> None:
    teacher.double()
    teacher.rows.mul_(0.7)


def grown(teacher: Any) -> None:
    teacher.rows = nn.Parameter(torch.cat([teacher.rows, teacher.rows[-1:] * 0.7]))


def emptied(teacher: Any) -> None:
    teacher.bias = None


def untied(teacher: Any) -> None:
    teacher.other = nn.Parameter(teacher.rows * 0.7)


def turned(teacher: Any) -> None:
    teacher.rows.data = teacher.rows.data.roll(1, 0)


class Teacher(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rows = self.other = nn.Parameter(torch.arange(6.0).reshape(2, 3) / 7)
        self.bias = nn.Parameter(torch.tensor([0.3, -0.2, 0.1]))

    def forward(self) -> Tensor:
        ranks = torch.arange(1, len(self.rows) + 1).unsqueeze(1)
        aim = (self.rows * ranks).sum(0) + 0.1 * self.other.sum(0)
        return (aim if self.bias is None else aim + self.bias).softmax(0)


@pytest.mark.trap(36)
@pytest.mark.parametrize("change", [doubled, grown, emptied, untied, turned])
def test_a_teacher_that_takes_another_form_goes_on_exactly(tmp_path, change):
    def loss() -> Any:
        teacher = Teacher()

        def measured(model: nn.Module, batch: Any) -> Tensor:
            prediction = model(batch[0])
            found = functional.cross_entropy(prediction, teacher().float().detach().expand_as(prediction))
            with torch.no_grad():
                change(teacher)
            return found

        return measured

    check_goes_on(lambda: small_job(loss=loss()), tmp_path, after=3)


@pytest.mark.trap(36)
def test_a_teacher_made_for_inference_goes_on_exactly(tmp_path):
    def loss() -> Any:
        with torch.inference_mode():
            teacher = Teacher()

        def measured(model: nn.Module, batch: Any) -> Tensor:
            prediction = model(batch[0])
            with torch.inference_mode():
                aim = teacher()
                teacher.bias.mul_(1.5)
            return functional.cross_entropy(prediction, aim.clone().expand_as(prediction))

        return measured

    check_goes_on(lambda: small_job(loss=loss()), tmp_path)


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
def test_a_teacher_of_tensors_without_dense_memory_is_no_hindrance():
    teacher = nn.Module()
    teacher.register_parameter(
        "rows", nn.Parameter(torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8), requires_grad=False)
    )

    def loss(model: nn.Module, batch: Any) -> Tensor:
        return functional.cross_entropy(model(batch[0]) * teacher.rows.dequantize(), batch[1])

    hasten.train(small_job(loss=loss), receivers=[])


@pytest.mark.trap(36)
def test_a_teacher_stays_moved_in_every_run_that_goes_on(tmp_path):
    def job() -> hasten.Job:
        return small_job(loss=following(WRITTEN["in place"]))

    with hasten.prepare(job()) as run:
        run.step(next(run.batches()))
        state = run.state_dict()["loss_parameters"]
        assert len(state) == 2
    with hasten.prepare(job()) as second:
        second.load_state_dict(run.state_dict())
        again = second.state_dict()["loss_parameters"]
    assert {name: each["value"].tolist() for name, each in again.items()} == {
        name: each["value"].tolist() for name, each in state.items()
    }


def test_a_teacher_that_never_moves_is_in_no_checkpoint(tmp_path):
    with hasten.prepare(small_job(loss=following(lambda mine, own: None))) as run:
        run.step(next(run.batches()))
        assert run.state_dict()["loss_parameters"] == {}


@pytest.mark.parametrize(
    ("place", "entry"),
    [
        ("teacher.nowhere", {"value": torch.ones(3), "first": [3]}),
        ("teacher.bias", {"value": torch.ones(4), "first": [4]}),
        ("teacher.bias", {"value": "x", "first": [3]}),
        ("model.bias", {"value": torch.ones(3), "first": [3]}),
    ],
)
def test_a_parameter_that_the_loss_does_not_have_is_refused(place, entry):
    model, teacher = nn.Linear(6, 3), nn.Linear(6, 3)
    held = LossParameters({"model": model, "teacher": teacher}, model)
    with pytest.raises(ValueError, match="parameter"):
        held.load_state_dict({place: entry})
