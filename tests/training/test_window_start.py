"""What a forward pass moves without asking is put back; and what never moves is not copied for it."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from hasten.entry import prepare
from hasten.facts.plan import make_plan
from hasten.training import moving_buffers
from hasten.training.buffer_copies import Copies
from hasten.training.moving_buffers import Moving, checksum
from support import small_job
from window_starts import LARGE, Holder, anew, by_batch_norm, in_place, past_the_count, start_of


@pytest.mark.parametrize("move", [in_place, past_the_count, by_batch_norm, anew])
@pytest.mark.parametrize("size", [3, LARGE])
@pytest.mark.parametrize("windows", [1, 2])
@pytest.mark.parametrize("at", [1, 2, 3, 4, 9])
def test_a_buffer_that_moves_is_put_back_however_it_moves_and_in_whichever_window(move, size, windows, at):
    model = Holder(torch.randn(size), move)
    start = start_of(model, windows)
    for step in range(1, at + 1):
        start.mark(step)
        before = model.held.clone()
        model()
    assert not torch.equal(model.held, before)
    assert start.back(at)
    assert torch.equal(model.held, before)
    assert model.held is dict(model.named_buffers())["held"]


def negated(module: Any) -> None:
    module.held.neg_()


def grown_in_its_place(module: Any) -> None:
    module.held.data = torch.cat([module.held, module.held[:1]])


def shrunk_to_what_would_be_repeated(module: Any) -> None:
    module.held.data = module.held[:1].clone()


def of_another_type_in_its_place(module: Any) -> None:
    module.held.data = module.held.double() + 1e-12


@pytest.mark.trap(36)
@pytest.mark.parametrize(
    "move", [negated, grown_in_its_place, shrunk_to_what_would_be_repeated, of_another_type_in_its_place]
)
@pytest.mark.parametrize("at", [1, 2, 3, 4, 9])
def test_a_buffer_is_put_back_to_the_last_bit_and_in_its_form(move, at):
    model = Holder(torch.zeros(3), move)
    start = start_of(model)
    for step in range(1, at + 1):
        start.mark(step)
        before = model.held.clone()
        model()
    assert start.back(at)
    assert (model.held.shape, model.held.dtype) == (before.shape, before.dtype)
    assert model.held.view(torch.uint8).equal(before.view(torch.uint8))


@pytest.mark.parametrize("persistent", [True, False])
def test_a_buffer_that_a_window_registers_is_gone_when_it_is_put_back_and_is_kept_from_the_next_on(persistent):
    def register(module: Any) -> None:
        if step == 3:
            module.register_buffer("late", torch.zeros(LARGE), persistent=persistent)
        if step >= 3:
            module.late.add_(1)

    model = Holder(torch.zeros(2), register)
    start = start_of(model)
    for step in (1, 2, 3):
        start.mark(step)
        model()
    start.back(3)
    assert not hasattr(model, "late")
    for step in (3, 4):
        start.mark(step)
        model()
    start.back(4)
    assert torch.equal(model.late, torch.ones(LARGE))
    assert ("late" in model.state_dict()) is persistent


@pytest.mark.parametrize("move", [in_place, anew])
def test_a_buffer_of_the_loss_is_put_back_too(move):
    held = Holder(torch.randn(3), move)
    start = start_of(nn.Linear(1, 1), loss=lambda: held())
    for step in (1, 2, 3, 4):
        start.mark(step)
        before = held.held.clone()
        held()
    start.back(4)
    assert torch.equal(held.held, before)


def test_torch_does_not_count_what_batch_norm_writes():
    """Why the count alone would not do; where it does one day, checksums can go."""
    model = Holder(torch.zeros(3), by_batch_norm)
    before = model.held._version
    model()
    assert (model.held.any(), model.held._version) == (True, before)


def test_the_window_before_the_present_one_can_be_put_back_too():
    model = Holder(torch.randn(LARGE), past_the_count)
    start = start_of(model, windows=2)
    seen = []
    for step in range(1, 7):
        start.mark(step)
        seen.append(model.held.clone())
        model()
    assert not start.back(4)
    assert torch.equal(model.held, seen[-1] * 0.5 + 1)  # forgotten: nothing is moved
    assert start.back(5)
    assert torch.equal(model.held, seen[4])


@pytest.mark.parametrize("move", [in_place, past_the_count, anew])
@pytest.mark.parametrize("begins", [3, 6, 11])
def test_a_large_buffer_that_begins_to_move_late_is_found(move, begins):
    model = Holder(torch.randn(LARGE), lambda module: move(module) if step >= begins else None)
    start = start_of(model)
    for step in range(1, 18):
        start.mark(step)
        before = model.held.clone()
        model()
    start.back(17)
    assert torch.equal(model.held, before)


@pytest.mark.parametrize("move", [in_place, anew])
def test_a_large_buffer_that_is_written_for_the_first_time_is_copied_from_the_next_window_on(move):
    model = Holder(torch.randn(LARGE), lambda module: move(module) if step >= 5 else None)
    start = start_of(model)
    for step in range(1, 7):  # contents are compared in the third, fourth and eighth window
        start.mark(step)
        before = model.held.clone()
        model()
    assert start.back(6)
    assert torch.equal(model.held, before)


@pytest.mark.trap(36)
@pytest.mark.parametrize("move", [in_place, past_the_count, anew])
@pytest.mark.parametrize("begins", [3, 5])
def test_a_window_in_which_a_large_buffer_begins_to_move_is_not_called_put_back(move, begins):
    model = Holder(torch.randn(LARGE), lambda module: move(module) if step >= begins else None)
    start = start_of(model)
    for step in range(1, begins + 1):
        start.mark(step)
        model()
    assert not start.back(begins)


def following(teacher: Any) -> None:
    with torch.no_grad():
        teacher.weight.mul_(0.5).add_(1)


def following_past_the_count(teacher: Any) -> None:
    teacher.weight.data.mul_(0.5).add_(1)


def followed_by_another(teacher: Any) -> None:
    teacher.weight = nn.Parameter(teacher.weight.detach() * 0.5 + 1)


@pytest.mark.trap(36)
@pytest.mark.parametrize("move", [following, following_past_the_count, followed_by_another])
@pytest.mark.parametrize("size", [3, LARGE])
@pytest.mark.parametrize("at", [1, 2, 3, 4, 9])
def test_a_teacher_that_moves_is_put_back_or_said_not_to_be(move, size, at):
    teacher = nn.Linear(size, 1)
    start = start_of(nn.Linear(1, 1), loss=lambda: teacher)
    for step in range(1, at + 1):
        start.mark(step)
        before = teacher.weight.clone()
        move(teacher)
    assert start.back(at) is torch.equal(teacher.weight, before)
    assert size == LARGE or torch.equal(teacher.weight, before)
    assert at < 3 or torch.equal(teacher.weight, before)


@pytest.mark.trap(36)
@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
@pytest.mark.parametrize(
    "make",
    [lambda number: (torch.eye(3) * number).to_sparse(), lambda number: quantized(torch.full((3,), number))],
    ids=["sparse", "quantized"],
)
@pytest.mark.parametrize("at", [1, 2, 3, 4, 9])
def test_a_teacher_that_has_no_checksum_is_put_back_when_it_moves(make, at):
    teacher = nn.Module()
    teacher.weight = nn.Parameter(make(0.0), requires_grad=False)
    start = start_of(nn.Linear(1, 1), loss=lambda: teacher)
    for step in range(1, at + 1):
        start.mark(step)
        teacher.weight.copy_(make(float(step)))
    assert start.back(at)
    weight = teacher.weight.detach()
    dense = weight.dequantize() if weight.is_quantized else weight.to_dense()
    assert dense.max() == at - 1


def quantized(tensor: Tensor) -> Tensor:
    return torch.quantize_per_tensor(tensor, 1.0, 0, torch.qint8)


def test_a_parameter_of_the_model_that_a_loss_holds_too_is_not_copied():
    model, holder = nn.Linear(3, 3), nn.Module()
    holder.tied, holder.own = model.weight, nn.Parameter(torch.ones(2))
    start = start_of(model, loss=lambda: holder)
    start.mark(1)
    with torch.no_grad():
        model.weight.add_(1)
        holder.own.add_(1)
    after = model.weight.clone()
    assert start.back(1)
    assert torch.equal(model.weight, after)
    assert torch.equal(holder.own, torch.ones(2))


def test_a_large_buffer_that_stands_still_is_copied_in_two_windows_and_looked_at_seldom(monkeypatch):
    looked = []
    monkeypatch.setattr(moving_buffers, "checksum", lambda tensor: looked.append(count) or checksum(tensor))
    model = nn.ModuleList([Holder(torch.full((1024, 1024), -torch.inf), None), nn.BatchNorm1d(4)])
    moving, copies = Moving([module._buffers for module in model.modules()]), Copies()
    copied = []
    for count in range(1, 101):  # noqa: B007  the lambda reads it
        moving.look()
        copies.take(moving.holders, moving.places)
        copied.append(sum(each.copy.nbytes for each in copies._copied))
    assert copied[:2] == [(4 << 20) + 40] * 2
    assert copied[2:] == [40] * 98
    assert looked == [1, 1, 1, 1, 3, 4, 8, 16, 32, 64]


def test_what_lies_in_a_sparse_buffer_is_put_back():
    model = Holder(torch.eye(4).to_sparse(), lambda module: module.held.mul_(2))
    start = start_of(model)
    for step in (1, 2, 3, 4):
        start.mark(step)
        before = model.held.to_dense()
        model()
    start.back(4)
    assert torch.equal(model.held.to_dense(), before)


def test_random_numbers_are_drawn_again_after_going_back():
    own = torch.Generator()
    start = start_of(nn.Linear(1, 1), loss=lambda: own)

    def drawn() -> list[Any]:
        return [torch.rand(2).tolist(), np.random.randn(3).tolist(), random.gauss(0, 1), torch.rand(1, generator=own)]

    for step in range(1, 5):
        start.mark(step)
        first = drawn()
    start.back(4)
    assert drawn() == first


def poisoned(model: Any) -> None:
    model.held[0] = torch.inf


def test_healing_puts_back_what_became_infinite_and_leaves_what_only_moved():
    model = nn.ModuleList([Holder(torch.tensor([-torch.inf, 0.0]), in_place), Holder(torch.zeros(2), poisoned)])
    start = start_of(model, windows=2)
    start.mark(1)
    model[0]()
    start.heal(1)
    assert model[0].held[1] == 1  # what was infinite before is no poison
    start.mark(2)
    model[0]()
    model[1]()
    start.mark(3)
    model[0]()
    start.heal(2)
    assert torch.equal(model[1].held, torch.zeros(2))
    assert model[0].held[1] == 1
    model[0]()
    start.back(3)  # the window after it began with what was healed
    assert torch.equal(model[1].held, torch.zeros(2))


def test_a_checksum_tells_any_one_element_from_another():
    for dtype in (torch.float32, torch.bool, torch.int64, torch.bfloat16, torch.complex64):
        tensor = torch.zeros(5, 3).to(dtype)
        before = checksum(tensor)
        tensor[4, 2] = 1
        assert checksum(tensor) != before
        assert checksum(tensor.T) != checksum(torch.zeros(3, 5).to(dtype))


@pytest.mark.parametrize("plan", [None, make_plan(microbatch=3)], ids=["whole", "parts"])
def test_an_exception_in_a_window_leaves_the_run_as_the_last_step_did(plan):
    def model() -> nn.Module:
        return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 3))

    def loss(model: nn.Module, batch: Any) -> Tensor:
        found = functional.cross_entropy(model(batch[0]), batch[1])
        if fails and run.window_closed:  # in the last microbatch, when all before it have moved something
            raise ValueError("planted")
        return found

    with prepare(small_job(model=model, loss=loss), plan) as run:
        run.keep_window_starts()
        fails, seen = False, 0
        for batch in run.batches():
            if run._between_windows:
                before = {key: value.clone() for key, value in run.model.state_dict().items()}
                drawn, seen, fails = torch.get_rng_state(), run.samples_seen, run.steps == 2
            try:
                run.step(batch)
            except ValueError as error:
                (note,) = [each for each in error.__notes__ if each.startswith("at optimizer step")]
                break
        assert run.back_to_window_start()
        assert note.startswith("at optimizer step 3: epoch 0, samples ")
        assert note.endswith(" of Job.train; seed 0")
        assert all(torch.equal(before[key], value) for key, value in run.model.state_dict().items())
        assert torch.equal(drawn, torch.get_rng_state())
        assert (run.samples_seen, run.steps) == (seen, 2)
