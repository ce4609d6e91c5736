"""Parameters of modules that only the loss holds go on as they were, once something has moved them."""

from __future__ import annotations

import json
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import hasten
from going_on import check_goes_on
from hasten.errors import JobError
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


def in_whole_numbers(teacher: Any) -> None:
    if teacher.rows.is_floating_point():
        teacher.rows = nn.Parameter((teacher.rows * 9).to(torch.int8), requires_grad=False)


def no_longer_trained(teacher: Any) -> None:
    for each in teacher.parameters():
        each.mul_(0.7 if each.requires_grad else 0.9)
    teacher.rows.requires_grad_(False)


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
@pytest.mark.parametrize("change", [doubled, grown, emptied, untied, turned, in_whole_numbers, no_longer_trained])
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


class Own(nn.Parameter):
    pass


def halved(before: Tensor, own: Tensor) -> Tensor:
    return 0.5 * before + 0.5 * own


class Late(nn.Module):
    """Parameters that come, grow in number or become one after the run has begun."""

    def __init__(self) -> None:
        super().__init__()
        self.register_parameter("filled", None)
        self.several = nn.ParameterList([torch.ones(3)])
        self.one, self.other = nn.Parameter(torch.ones(3)), nn.Parameter(torch.zeros(3))

    def forward(self) -> Tensor:
        late = [each for each in (self.filled, getattr(self, "new", None)) if each is not None]
        return sum([*late, *self.several, self.one, 2 * self.other], torch.zeros(3))

    def follow(self, own: Tensor) -> None:
        self.filled = nn.Parameter(own.clone() if self.filled is None else halved(self.filled, own))
        if not hasattr(self, "new"):
            self.register_parameter("new", nn.Parameter(own / 3))
        self.new.mul_(0.9)
        self.several.append(nn.Parameter(halved(self.several[-1], own)))
        self.other = self.one
        self.one.lerp_(own, 0.3)


class Held(nn.Module):
    """Parameters that are written past the graph, in forms that are hard to write into."""

    def __init__(self) -> None:
        super().__init__()
        flat = torch.arange(9.0) / 7
        self.parts = nn.ParameterList([flat[:3], flat[3:].view(2, 3)])
        self.of_own_class = Own(torch.ones(3))
        self.expanded = nn.Parameter(torch.ones(1).expand(3))
        self.turned = self.again = nn.Parameter((torch.arange(6.0) / 7).view(3, 2).t())
        self.whole = nn.Parameter(torch.zeros(3, dtype=torch.int64), requires_grad=False)
        with torch.device("meta"):
            self.made_later = nn.Parameter(torch.empty(3))
        self.listed = [each for each in self.parameters() if not each.is_meta]

    def forward(self) -> Tensor:
        later = torch.zeros(3) if self.made_later.is_meta else self.made_later
        tables = self.parts[1].sum(0) + self.turned.sum(0) + 2 * self.again.sum(0)
        return later + tables + self.parts[0] + self.of_own_class + self.expanded + self.whole

    def follow(self, own: Tensor) -> None:
        for each in self.listed:
            if each is self.expanded:
                each.data = halved(each.data, own)
            elif each is self.whole:
                each.data.bitwise_not_()
            else:
                each.data.copy_(halved(each.data, own))
        if self.made_later.is_meta:
            self.made_later = nn.Parameter(own.clone())
        self.made_later.data.mul_(0.9)


@pytest.mark.trap(36)
@pytest.mark.parametrize("kind", [Late, Held])
def test_a_teacher_of_any_parameters_goes_on_exactly(tmp_path, kind):
    def loss() -> Any:
        teacher = kind()

        def measured(model: nn.Module, batch: Any) -> Tensor:
            prediction = model(batch[0])
            found = functional.cross_entropy(prediction, teacher().detach().softmax(0).expand_as(prediction))
            with torch.no_grad():
                teacher.follow(model.bias)
            return found

        return measured

    check_goes_on(lambda: small_job(model=lambda: nn.Linear(6, 3), loss=loss()), tmp_path, after=3)


@pytest.mark.parametrize("layer", [nn.LazyLinear(3), nn.LazyBatchNorm1d()], ids=["a parameter", "a buffer"])
def test_a_teacher_that_does_not_know_its_sizes_is_refused(layer):
    job = small_job(loss=lambda model, batch: functional.mse_loss(model(batch[0]), layer(batch[0])))
    with pytest.raises(JobError, match="is not initialized"):
        hasten.prepare(job)


def failing_at(step: int, width: int, write: Any) -> Any:
    """A loss with a teacher so wide that follows the model; it raises at a step, when the teacher has moved."""
    teacher, calls = nn.Linear(6, width), count(1)
    with torch.no_grad():
        teacher.weight.fill_(0.5)
        teacher.bias.fill_(0.0)

    def loss(model: nn.Module, batch: Any) -> Tensor:
        prediction = model(batch[0])
        aim = teacher(batch[0]).detach()[:, :3]
        with torch.no_grad():
            write(teacher.weight, model.weight.mean(0))
        if next(calls) == step:
            raise ValueError("at this step")
        return functional.mse_loss(prediction, aim)

    return loss


@pytest.mark.trap(36)
@pytest.mark.parametrize("width", [3, 4000], ids=["small", "large"])
@pytest.mark.parametrize("step", [1, 2, 3, 6])
@pytest.mark.parametrize("how", WRITTEN)
def test_a_teacher_that_has_moved_when_a_step_fails_goes_on_exactly(tmp_path, how, step, width):
    def job(fails_at: int) -> hasten.Job:
        loss = failing_at(fails_at, width, WRITTEN[how])
        return small_job(model=lambda: nn.Linear(6, 3), loss=loss, log_every=1)

    hasten.train(job(0), run_dir=tmp_path / "whole", receivers=[])
    with pytest.raises(ValueError, match="at this step"):
        hasten.train(job(step), run_dir=tmp_path / "cut", receivers=[])
    hasten.resume(job(0), run_dir=tmp_path / "cut", receivers=[])
    assert logged(tmp_path / "cut") == logged(tmp_path / "whole")


def logged(run: Path) -> list[tuple[int, str]]:
    lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [(line["step"], line["loss"].hex()) for line in lines if line["event"] == "trained"]


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
        ("teacher.nowhere", {"value": torch.ones(3), "first": [3], "itself": True, "requires_grad": True}),
        ("teacher.nowhere", {"value": torch.ones(3), "first": None, "itself": True, "requires_grad": True}),
        ("teacher.forward", {"value": torch.ones(3), "first": "absent", "itself": False, "requires_grad": True}),
        ("teacher.training", {"value": torch.ones(3), "first": "absent", "itself": False, "requires_grad": True}),
        ("teacher.", {"value": torch.ones(3), "first": "absent", "itself": False, "requires_grad": True}),
        ("nowhere.bias", {"value": torch.ones(3), "first": "absent", "itself": False, "requires_grad": True}),
        ("teacher.bias", {"value": torch.ones(4), "first": [4], "itself": True, "requires_grad": True}),
        ("teacher.bias", {"value": "x", "first": [3], "itself": True, "requires_grad": True}),
        ("teacher.bias", {"value": torch.ones(3), "first": [3]}),
        ("teacher.bias", {"value": torch.ones(3), "first": [3], "itself": True, "requires_grad": True, "more": 1}),
        ("teacher.bias", torch.ones(3)),
        ("model.bias", {"value": torch.ones(3), "first": [3], "itself": True, "requires_grad": True}),
    ],
)
def test_a_parameter_that_the_loss_does_not_have_is_refused(place, entry):
    model, teacher = nn.Linear(6, 3), nn.Linear(6, 3)
    held = LossParameters({"model": model, "teacher": teacher}, model)
    before = dict(vars(teacher)), dict(teacher._parameters)
    with pytest.raises(ValueError, match=r"parameter|tensor"):
        held.load_state_dict({place: entry}, torch.device("cpu"))
    assert (dict(vars(teacher)), dict(teacher._parameters)) == before
