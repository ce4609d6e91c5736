"""The step: an order that nothing can change, and no update that is not finite."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from hasten.techniques.setup import StepOptions
from hasten.training.step import Step
from support.training.steps import (
    Recording,
    classifier,
    cut,
    mean_loss_function,
    relative_error,
    rows,
)

# ── finite, or not at all ───────────────────────────────────────────────────────────────────────────────────────────


def poisoned(value: float):
    """A loss whose gradient is `value` wherever the batch says so."""

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        mean = mean_loss_function(model, batch)
        return mean * value if bool((batch[0] > 90).any()) else mean

    return loss


def with_mark(batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    features = batch[0].clone()
    features[0, 0] = 99.0
    return features, batch[1]


@pytest.mark.trap(9)
def test_an_infinity_for_one_of_two_optimizers_moves_neither():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.head = nn.Linear(5, 4), nn.Linear(5, 4)

        def forward(self, features):
            return self.body(features), self.head(features)

    def loss(model, batch):
        body, head = model(batch[0])
        return functional.cross_entropy(body, batch[1]) + functional.cross_entropy(head, batch[1]) * math.inf

    model = Two()
    optimizers = [torch.optim.SGD(part.parameters(), lr=0.1) for part in (model.body, model.head)]
    step = Step(model, loss, optimizers, StepOptions(scale_gradients=True))
    before = copy.deepcopy(model.state_dict())
    batch = rows(4)[0].float(), rows(4)[1]
    step.accumulate(batch, 4)
    step.update()
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())
    assert (step.skips.applied, step.skips.skipped) == (0, 1)


def scaled_step(after_update=lambda: None, **options):
    model = classifier(torch.float32)
    optimizer = Recording(model.parameters())
    step = Step(
        model, poisoned(math.inf), [optimizer], StepOptions(scale_gradients=True, **options), after_update=after_update
    )
    return step, optimizer, (rows(4)[0].float(), rows(4)[1])


@pytest.mark.trap(10)
def test_a_skipped_update_halves_the_scale_and_moves_nothing_else():
    moved: list[int] = []
    step, optimizer, batch = scaled_step(after_update=lambda: moved.append(1))
    scale = step.state_dict()["scaler"]["scale"]
    for piece in (batch, with_mark(batch), batch):
        step.accumulate(piece, 4)
        step.update()
    assert len(moved) == len(optimizer.seen) == step.skips.applied == 2
    assert step.skips.skipped == 1
    assert step.state_dict()["scaler"]["scale"] == scale / 2


@pytest.mark.trap(8)
@pytest.mark.trap(11)
@pytest.mark.parametrize("kind", [2.0, 1.0, math.inf])
def test_scaled_gradients_are_unscaled_once_and_clipped_after(kind):
    step, optimizer, batch = scaled_step(clip_norm=0.01, clip_norm_type=kind)
    pieces = cut(batch, [1, 3])
    for position, piece in enumerate(pieces):
        step.accumulate(piece, len(piece[1]), last=position == 1)
    step.update()
    plain = classifier(torch.float32)
    mean_loss_function(plain, batch).backward()
    norm = nn.utils.clip_grad_norm_(plain.parameters(), 0.01, kind)
    assert relative_error(optimizer.seen[0], [parameter.grad for parameter in plain.parameters()]) < 1e-5
    assert step.gradient_norm is not None
    assert float(step.gradient_norm) == pytest.approx(float(norm), rel=1e-5)


@pytest.mark.trap(8)
def test_between_boundaries_nothing_is_unscaled_clipped_or_stepped():
    step, optimizer, batch = scaled_step(clip_norm=0.01)
    state = step.state_dict()["scaler"]
    step.accumulate(batch, 4, last=False)
    first = [parameter.grad.clone() for parameter in step.model.parameters()]
    step.accumulate(batch, 4, last=False)
    doubled = [parameter.grad / 2 for parameter in step.model.parameters()]
    assert relative_error(doubled, first) < 1e-6
    assert optimizer.seen == []
    assert step.state_dict()["scaler"] == state


@pytest.mark.trap(12)
@pytest.mark.parametrize("optimizer_class", [torch.optim.SGD, torch.optim.AdamW])
def test_a_fused_optimizer_with_clipping_moves_as_the_plain_one_does(optimizer_class):
    moved = []
    for fused in (False, True):
        model = classifier(torch.float32)
        optimizer = optimizer_class(model.parameters(), lr=0.1, fused=fused)
        step = Step(model, mean_loss_function, [optimizer], StepOptions(clip_norm=0.05, scale_gradients=True))
        batch = rows(8)[0].float(), rows(8)[1]
        for _ in range(4):
            step.accumulate(batch, 8)
            step.update()
        moved.append([parameter.detach() for parameter in model.parameters()])
    assert relative_error(moved[1], moved[0]) < 1e-6


@pytest.mark.trap(10)
@pytest.mark.trap(12)
@pytest.mark.parametrize("poisoned_steps", [(0,), (1, 2)])
def test_an_answer_that_comes_one_step_late_gives_the_same_run(poisoned_steps, monkeypatch):
    """Where the device decides, schedule and averages move later in time but on the same updates."""
    runs, applied = [], 5 - len(poisoned_steps)
    for late in (False, True):
        monkeypatch.setattr("hasten.training.step.decides_on_device", lambda device, optimizers, late=late: late)
        model = classifier(torch.float32)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9, fused=True)
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
        step = Step(
            model, poisoned(math.inf), [optimizer], StepOptions(scale_gradients=True), after_update=schedule.step
        )
        batch = rows(4)[0].float(), rows(4)[1]
        for position in range(5):
            step.accumulate(with_mark(batch) if position in poisoned_steps else batch, 4)
            step.update()
        assert step.skips.attempted == 5
        state = step.state_dict()
        assert (state["applied"], state["skipped"]) == (applied, len(poisoned_steps))
        runs.append(([parameter.detach() for parameter in model.parameters()], optimizer.param_groups[0]["lr"]))
    assert all(torch.equal(a, b) for a, b in zip(runs[0][0], runs[1][0], strict=True))
    assert runs[0][1] == runs[1][1] == 0.5 * 0.5**applied


def test_what_raises_in_the_middle_of_a_window_leaves_nothing_of_it():
    model, failing = classifier(), [True]
    optimizer = Recording(model.parameters())

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        if len(batch[1]) == 3 and failing:
            failing.pop()
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return mean_loss_function(model, batch)

    step = Step(model, loss, [optimizer])
    for attempt in range(2):
        step.accumulate(cut(rows(5), [2, 3])[0], 2, last=False)
        if attempt == 0:
            with pytest.raises(torch.OutOfMemoryError):
                step.accumulate(cut(rows(5), [2, 3])[1], 3)
        else:
            step.accumulate(cut(rows(5), [2, 3])[1], 3)
            step.update()
    plain = Step(wanted_model := classifier(), mean_loss_function, [wanted := Recording(wanted_model.parameters())])
    plain.accumulate(rows(5), 5)
    plain.update()
    for found, gradient in zip(optimizer.seen[0], wanted.seen[0], strict=True):
        torch.testing.assert_close(found, gradient, rtol=1e-12, atol=1e-12)


# ── precision ───────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.trap(13)
def test_forward_and_loss_run_under_autocast_and_the_backward_pass_outside():
    inside: list[bool] = []

    class Watched(torch.autograd.Function):
        @staticmethod
        def forward(ctx, tensor):
            return tensor.clone()

        @staticmethod
        def backward(ctx, gradient):
            inside.append(torch.is_autocast_enabled("cpu"))
            return gradient

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        inside.append(torch.is_autocast_enabled("cpu"))
        return Watched.apply(mean_loss_function(model, batch))

    model = classifier(torch.float32)
    step = Step(
        model,
        loss,
        [Recording(model.parameters())],
        StepOptions(autocast=torch.bfloat16),
    )
    step.accumulate((rows(4)[0].float(), rows(4)[1]), 4)
    assert inside == [True, False]


@pytest.mark.trap(13)
def test_weights_changed_in_place_are_seen_by_the_next_forward_under_autocast():
    model = nn.Linear(5, 4)
    step = Step(model, mean_loss_function, [Recording(model.parameters())], StepOptions(autocast=torch.bfloat16))
    batch = rows(4)[0].float(), rows(4)[1]
    first = step.accumulate(batch, 4, last=False)
    with torch.no_grad():
        model.weight.mul_(3)
    second = step.accumulate(batch, 4, last=True)
    assert not torch.equal(first, second)


@pytest.mark.fault("out of device memory mid-run")
@pytest.mark.parametrize("parts", [[4], [1, 3]])
def test_a_window_that_fails_in_its_update_is_recorded_once_it_is_taken_again(monkeypatch, parts):
    model, batch = classifier(torch.float32), (rows(4)[0].float(), rows(4)[1])
    step = Step(model, mean_loss_function, [Recording(model.parameters())], StepOptions(clip_norm=1.0))

    def take_window():
        for position, piece in enumerate(cut(batch, parts), 1):
            step.accumulate(piece, len(piece[1]), last=position == len(parts))
        step.update()

    def without_room(*_):
        raise torch.OutOfMemoryError("planted")

    with monkeypatch.context() as patched:
        patched.setattr("hasten.training.step_parts.gradients.norm", without_room)
        with pytest.raises(torch.OutOfMemoryError):
            take_window()
    take_window()
    assert [window.items for window in step.losses.drain()] == [4]
