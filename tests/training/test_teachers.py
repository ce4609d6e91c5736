"""A loss with a teacher of its own: it comes back when a window is taken again, and an evaluation does not move it."""

from __future__ import annotations

import json
from collections import deque
from copy import deepcopy
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import hasten
from going_on import check_goes_on, losses
from hasten.errors import Misconfigured, OutOfMemory
from hasten.facts.events import Noticed, Trained
from hasten.training.logs import Collected
from support import small_job


def teacher(width: int = 3) -> nn.Module:
    made = nn.Linear(6, width)
    with torch.no_grad():
        made.weight.fill_(0.5)
        made.bias.fill_(0.0)
    return made


def follow(held: nn.Module, model: nn.Module) -> None:
    with torch.no_grad():
        for mine, own in zip(held.parameters(), model.parameters(), strict=True):
            mine.lerp_(own, 0.3)


def stand(held: nn.Module, model: nn.Module) -> None:
    pass


def loss_with(held: nn.Module, move: Any, fails_at: int = 0, error: Any = ValueError) -> Any:
    """fails_at: the call in which it raises, when the teacher has moved."""
    calls = count(1)

    def loss(model: nn.Module, batch: Any) -> Tensor:
        prediction = model(batch[0])
        with torch.inference_mode():
            aim = held(batch[0])[:, :3]
        move(held, model)
        if next(calls) == fails_at:
            raise error("planted")
        return functional.mse_loss(prediction, aim.clone()) + functional.cross_entropy(prediction, batch[1])

    return loss


def job(loss: Any, **changes: Any) -> hasten.Job:
    return small_job(model=lambda: nn.Linear(6, 3), loss=loss, log_every=1, **changes)


def made_for_inference() -> nn.Module:
    with torch.inference_mode():
        return nn.Sequential(teacher(), nn.BatchNorm1d(3)).eval()


def expanded() -> nn.Module:
    held = teacher()
    held.bias = nn.Parameter(torch.ones(1).expand(3))
    return held


FROZEN = {
    "plain": teacher,
    "made for inference": made_for_inference,
    "expanded": expanded,
    "wide": lambda: teacher(4000),
}


def logged(events: Any) -> list[float]:
    return [event.loss for event in events if isinstance(event, Trained)]


@pytest.mark.fault("out of device memory mid-run")
@pytest.mark.parametrize("step", [1, 2, 3, 5])
@pytest.mark.parametrize("kind", FROZEN)
def test_a_window_with_a_teacher_that_stands_still_is_taken_in_smaller_parts(kind, step):
    whole, split = Collected(), Collected()
    hasten.train(job(loss_with(FROZEN[kind](), stand)), receivers=[whole])
    loss = loss_with(FROZEN[kind](), stand, fails_at=step, error=torch.OutOfMemoryError)
    hasten.train(job(loss), receivers=[split])
    assert any("microbatches of" in event.text for event in split.events if isinstance(event, Noticed))
    assert logged(split.events) == pytest.approx(logged(whole.events), rel=1e-5)


@pytest.mark.fault("out of device memory mid-run")
@pytest.mark.parametrize("step", [1, 3])
@pytest.mark.parametrize("width", [3, 4000])
def test_a_loss_that_would_move_its_teacher_for_each_part_is_not_split(step, width):
    def move(held: Any, model: Any) -> None:
        with torch.no_grad():
            held.weight.lerp_(model.weight.mean(0), 0.3)

    loss = loss_with(teacher(width), move, fails_at=step, error=torch.OutOfMemoryError)
    with pytest.raises(OutOfMemory, match=r"a forward pass moves '(loss.held.)?weight'"):
        hasten.train(job(loss), receivers=[])


@pytest.mark.fault("out of device memory mid-run")
@pytest.mark.parametrize("step", [1, 3])
def test_a_teacher_with_a_nan_in_it_stands_still_all_the_same(step):
    held = teacher(4)
    with torch.no_grad():
        held.weight[3] = torch.nan
    events = Collected()
    loss = loss_with(held, stand, fails_at=step, error=torch.OutOfMemoryError)
    hasten.train(job(loss), receivers=[events])
    assert any("microbatches of" in event.text for event in events.events if isinstance(event, Noticed))


@pytest.mark.trap(36)
@pytest.mark.parametrize("move", [stand, follow])
def test_a_teacher_with_buffers_that_was_made_for_inference_goes_on_exactly(tmp_path, move):
    def moved(held: Any, model: Any) -> None:
        with torch.inference_mode():
            move(held[0], model)

    check_goes_on(lambda: job(loss_with(made_for_inference(), moved)), tmp_path)


@pytest.mark.trap(36)
def test_a_teacher_in_a_deque_goes_on_exactly(tmp_path):
    def made() -> hasten.Job:
        held = deque([teacher()])

        def loss(model: nn.Module, batch: Any) -> Tensor:
            found = functional.mse_loss(model(batch[0]), held[0](batch[0]).detach())
            follow(held[0], model)
            return found

        return job(loss)

    check_goes_on(made, tmp_path)


def lines(run: Path) -> list[dict[str, Any]]:
    told = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [{"loss": line["loss"], "step": line["step"]} for line in told if line["event"] == "trained"]


@pytest.mark.trap(36)
def test_an_evaluation_that_fails_leaves_the_teacher_as_it_was(tmp_path):
    def evaluated(fails_at: int = 0) -> hasten.Job:
        found = job(loss_with(teacher(), follow, fails_at), epochs=3)
        return replace(found, valid=found.train)

    hasten.train(evaluated(), run_dir=tmp_path / "whole", receivers=[])
    with pytest.raises(ValueError, match="planted"):
        hasten.train(evaluated(fails_at=8), run_dir=tmp_path / "cut", receivers=[])
    hasten.resume(evaluated(), run_dir=tmp_path / "cut", receivers=[])
    assert lines(tmp_path / "cut") == lines(tmp_path / "whole")


@pytest.mark.trap(36)
def test_how_often_is_evaluated_does_not_change_what_a_teacher_learns():
    found = []
    for every in (None, 1):
        events, plain = Collected(), job(loss_with(teacher(), follow))
        hasten.train(replace(plain, valid=plain.train, evaluate_every=every), receivers=[events])
        found.append(logged(events.events))
    assert found[0] == found[1]


@pytest.mark.parametrize("error", [ValueError, torch.OutOfMemoryError])
def test_a_step_that_cannot_be_put_back_is_said_not_to_be_saved(error, tmp_path):
    held = teacher(4000)

    def move(held: Any, model: Any) -> None:
        if next(calls) == 6:
            with torch.no_grad():
                held.weight.mul_(0.9)

    calls = count(1)
    with pytest.raises(error, match="planted") as raised:
        hasten.train(job(loss_with(held, move, 6, error)), run_dir=tmp_path / "run", receivers=[])
    assert any(note.startswith("step 5 is not saved") for note in raised.value.__notes__)
    assert [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()] == ["step-1"]


@pytest.mark.trap(36)
def test_a_teacher_that_an_evaluation_moves_and_that_there_was_no_room_to_copy_is_told_of(monkeypatch):
    monkeypatch.setattr("hasten.training.unmoved_loss.free_memory", lambda: 0)
    plain, events = job(loss_with(teacher(width=4000), move_wide)), Collected()
    hasten.train(replace(plain, valid=plain.train, evaluate_every=2), receivers=[events])
    told = [event.text for event in events.events if isinstance(event, Noticed)]
    assert len(told) == 1
    assert "and it stays so: weight. Where that is no cache" in told[0]


def move_wide(held: nn.Module, model: nn.Module) -> None:
    with torch.no_grad():
        held.weight.mul_(0.9)


@pytest.mark.trap(36)
@pytest.mark.parametrize("move", [stand, move_wide])
def test_what_stands_still_in_evaluations_is_copied_in_the_first_two_alone(move):
    plain = job(loss_with(teacher(width=4000), move))
    with hasten.prepare(replace(plain, valid=plain.train)) as run:
        copied = list[int]()
        for batch, _ in zip(run.batches(), range(4), strict=False):
            run.step(batch)
            assert run.evaluate().left_moved == ()
            copied.append(len(run.unmoved_loss._copies._copied))
    assert copied == ([2, 2, 1, 1] if move is stand else [2, 2, 2, 2])


def test_a_state_of_before_the_teacher_moved_does_not_fit_into_the_same_run():
    with hasten.prepare(job(loss_with(teacher(), follow))) as run:
        state = deepcopy(run.state_dict())
        run.step(next(run.batches()))
        with pytest.raises(Misconfigured, match="has moved since; load it into a new run"):
            run.load_state_dict(state)


def test_a_list_of_parameters_that_has_grown_in_a_window_that_fails_is_as_it_was():
    held = nn.ParameterList([torch.ones(3)])

    def loss(model: nn.Module, batch: Any) -> Tensor:
        held.append(nn.Parameter(held[-1].detach() * 0.9))
        if next(calls) == 3:
            raise ValueError("planted")
        return functional.mse_loss(model(batch[0]), held[-1].expand(len(batch[0]), 3))

    calls = count(1)
    with hasten.prepare(job(loss)) as run:
        run.keep_window_starts()
        with pytest.raises(ValueError, match="planted"):
            losses(run)
        assert run.back_to_window_start()
    assert len(held) == 3
    assert [each[0].item() for each in held] == pytest.approx([1, 0.9, 0.81])
