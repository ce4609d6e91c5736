"""An evaluation moves nothing that the loss holds; what it has to make or fill stays, and is told of."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from itertools import count
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import hasten
from hasten.facts.events import Noticed
from hasten.training.logs import Collected
from support import small_job


def job(loss: Any) -> hasten.Job:
    return small_job(model=lambda: nn.Linear(6, 3), loss=loss, log_every=1)


@pytest.mark.trap(36)
@pytest.mark.parametrize("after", [0, 3])
def test_an_evaluation_in_a_loop_of_ones_own_moves_nothing_of_the_loss(after):
    """Also what had stood still until then, and what it would make."""
    held, bank = nn.Linear(6, 3), nn.ParameterList([torch.ones(3)])
    trains = [True]

    def loss(model: nn.Module, batch: Any) -> Tensor:
        if not trains[0]:
            held.weight.data = held.weight.data * 0.5 + model.weight.data * 0.5
            held.bias.data = model.bias.data
            bank.append(torch.ones(3))
        return functional.mse_loss(model(batch[0]), held(batch[0]).detach())

    plain = job(loss)
    with hasten.prepare(replace(plain, valid=plain.train)) as run:
        for batch in run.batches():
            if run.steps == after:
                break
            run.step(batch)
        before = deepcopy((held.state_dict(), run.weights()))
        trains[0] = False
        run.evaluate()
        after_it = (held.state_dict(), run.weights())
    assert len(bank) == len([*bank.parameters()]) == 1
    for one, other in zip(before, after_it, strict=True):
        assert all(torch.equal(one[name], other[name]) for name in one)
    run.model.weight.data.add_(1)
    assert held.bias.data_ptr() != run.model.bias.data_ptr()


class Tables(nn.Module):
    """A loss with a table for each length of a batch, made when the first of that length comes."""

    def __init__(self) -> None:
        super().__init__()
        self.known = set[int]()

    def forward(self, prediction: Tensor, target: Tensor) -> Tensor:
        length = len(target)
        if length not in self.known:
            self.known.add(length)
            self.register_buffer(f"of_{length}", torch.ones(length), persistent=False)
        return (functional.cross_entropy(prediction, target, reduction="none") * getattr(self, f"of_{length}")).mean()


class Cast(nn.Linear):
    """It gets its memory and its type when it is first called, and remembers that it has them."""

    is_ready = False

    def forward(self, rows: Tensor) -> Tensor:
        if not self.is_ready:
            if self.weight.is_meta:
                self.to_empty(device="cpu")
                self.reset_parameters()
            self.double()
            self.is_ready = True
        return super().forward(rows.double())


@pytest.mark.parametrize("at_first", [True, False])
def test_what_an_evaluation_makes_for_the_first_time_stays_and_is_told_of(at_first):
    held = Tables()
    plain = job(hasten.supervised(held))
    rows, targets = plain.train
    events = Collected()
    with_valid = replace(plain, valid=(rows[:5], targets[:5]), evaluate_every=2)
    if at_first:
        with hasten.prepare(with_valid) as run:
            assert run.evaluate().left_moved == ("of_5",)
            assert run.evaluate().left_moved == ()
    hasten.train(with_valid, receivers=[events])
    told = [event.text for event in events.events if isinstance(event, Noticed)]
    assert len([text for text in told if "of_5" in text]) == (not at_first)


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_a_teacher_that_is_cast_or_gets_its_memory_in_an_evaluation_keeps_it(device):
    held = Cast(6, 3, device=device)

    def loss(model: nn.Module, batch: Any) -> Tensor:
        return functional.mse_loss(model(batch[0]), held(batch[0]).detach().float())

    plain = job(loss)
    with hasten.prepare(replace(plain, valid=plain.train)) as run:
        for _ in range(2):
            run.evaluate()
        run.step(next(run.batches()))
    assert held.weight.dtype == torch.float64


@pytest.mark.trap(45)
def test_gradients_go_through_a_teacher_that_is_cast_in_an_evaluation_and_its_parameters_are_the_same_ones():
    held = Cast(3, 3)
    weight = held.weight
    plain = job(lambda model, batch: functional.cross_entropy(held(model(batch[0])).float(), batch[1]))
    with hasten.prepare(replace(plain, valid=plain.train)) as run:
        run.evaluate()
        run.step(next(run.batches()))
    assert held.weight is weight


class Follower(nn.Module):
    """It makes its teacher of the model when it is first called."""

    teacher: nn.Module | None

    def __init__(self) -> None:
        super().__init__()
        self.teacher = None

    def forward(self, model: nn.Module, rows: Tensor) -> Tensor:
        if self.teacher is None:
            del self.teacher
            self.teacher = deepcopy(model)
        for mine, own in zip(self.teacher.parameters(), model.parameters(), strict=True):
            mine.data.lerp_(own.data, 0.1)
        return self.teacher(rows)


@pytest.mark.trap(45)
def test_a_teacher_that_a_module_makes_in_an_evaluation_can_be_trained_with():
    held = Follower()
    plain = job(lambda model, batch: functional.mse_loss(model(batch[0]), held(model, batch[0])))
    with hasten.prepare(replace(plain, valid=plain.train)) as run:
        run.evaluate()
        run.step(next(run.batches()))
    assert not any(each.is_inference() for each in held.parameters())


class Filled(nn.Module):
    """A running centre that begins with the first batch."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("held", None)

    def forward(self, rows: Tensor) -> Tensor:
        if self.held is None:
            self.held = rows.detach().mean(0)
        else:
            self.held.lerp_(rows.detach().mean(0), 0.1)
        return rows - self.held


class Regrown(nn.Module):
    """A mask that is as long as the longest batch so far."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("held", torch.ones(1, 1))
        self.longest = 1

    def forward(self, rows: Tensor) -> Tensor:
        if len(rows) > self.longest:
            self.held, self.longest = torch.ones(len(rows), 1), len(rows)
        return rows * self.held[: len(rows)]


class Lengthened(Regrown):
    """The same mask, in the same buffer."""

    def forward(self, rows: Tensor) -> Tensor:
        if len(rows) > self.longest:
            self.held.data, self.longest = torch.ones(len(rows), 1), len(rows)
        return rows * self.held[: len(rows)]


class Positions(nn.Module):
    """A table with room for every length, filled as far as the longest batch so far."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("held", torch.zeros(64))
        self.filled = 0

    def forward(self, rows: Tensor) -> Tensor:
        if len(rows) > self.filled:
            self.held[self.filled : len(rows)] = 1
            self.filled = len(rows)
        return rows * self.held[: len(rows), None]


class Begun(nn.Module):
    """A centre that begins with the first batch, in a buffer that it has from the start."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("held", torch.zeros(3))
        self.has_begun = False

    def forward(self, rows: Tensor) -> Tensor:
        if not self.has_begun:
            self.held.copy_(rows.detach().mean(0))
            self.has_begun = True
        return rows - self.held


class Noted(nn.Module):
    """A mask that is as long as its entry in a dictionary says."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("held", torch.ones(1, 1))
        self.known = {"longest": 1}

    def forward(self, rows: Tensor) -> Tensor:
        if len(rows) > self.known["longest"]:
            self.held, self.known["longest"] = torch.ones(len(rows), 1), len(rows)
        return rows * self.held[torch.arange(len(rows))]


class Parent(nn.Module):
    """It remembers how long the mask of its child is."""

    def __init__(self) -> None:
        super().__init__()
        self.child, self.longest = nn.Module(), 1
        self.child.register_buffer("held", torch.ones(1, 1))

    @property
    def held(self) -> Tensor:
        return self.child.held

    def forward(self, rows: Tensor) -> Tensor:
        if len(rows) > self.longest:
            self.child.held, self.longest = torch.ones(len(rows), 1), len(rows)
        return rows * self.held[torch.arange(len(rows))]


class Bank(nn.Module):
    """The last rows that came, which it knows from what it holds."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("held", torch.zeros(1, 3))

    def forward(self, rows: Tensor) -> Tensor:
        self.held = torch.cat([self.held, rows.detach()])[-30:]
        return rows - self.held.mean(0)


def evaluated_and_trained(module: nn.Module) -> tuple[Any, Tensor | None, Tensor | None]:
    """What two evaluations left, and what the module held before and after them."""
    loss = lambda model, batch: functional.cross_entropy(module(model(batch[0])), batch[1])  # noqa: E731
    plain = job(loss)
    with hasten.prepare(replace(plain, valid=plain.train)) as run:
        before = None if module.held is None else module.held.clone()
        left = [*run.evaluate().left_moved, *run.evaluate().left_moved]
        after = module.held
        for batch in run.batches():
            run.step(batch)
    return left, before, after


@pytest.mark.trap(45)
@pytest.mark.parametrize("make", [Filled, Regrown, Lengthened, Positions, Begun, Noted, Parent])
def test_what_an_evaluation_has_filled_can_be_trained_with(make):
    left, _, after = evaluated_and_trained(make())
    assert left == ["held"]
    assert after is not None
    assert not after.is_inference()


@pytest.mark.parametrize("make", [Positions, Begun])
def test_what_a_module_remembers_to_have_filled_is_filled_after_an_evaluation(make):
    _, _, after = evaluated_and_trained(make())
    assert after is not None
    assert after[0] != 0


class Shown(nn.Module):
    """A running centre beside what it keeps only to be shown, and a mode that follows the model's."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("held", torch.zeros(3))
        self.last, self.number = None, 0.0
        self.shape: Any = None

    def forward(self, rows: Tensor) -> Tensor:
        self.train(not torch.is_inference_mode_enabled())
        self.held.lerp_(rows.detach().mean(0), 0.1)
        self.last, self.number, self.shape = rows.detach(), float(rows.detach().sum()), self.held.shape
        return rows - self.held


@pytest.mark.trap(36)
def test_a_module_that_keeps_what_it_shows_remembers_nothing_by_it():
    held = Shown()
    held(torch.ones(2, 3))
    plain = job(lambda model, batch: functional.cross_entropy(held(model(batch[0])), batch[1]))
    with hasten.prepare(replace(plain, valid=plain.train)) as run:
        before = held.held.clone()
        assert run.evaluate().left_moved == ()
        assert held.held.equal(before)


@pytest.mark.trap(36)
def test_a_bank_that_grows_takes_no_row_in_from_an_evaluation():
    left, before, after = evaluated_and_trained(Bank())
    assert left == []
    assert before is not None
    assert after is not None
    assert torch.equal(before, after)


@pytest.mark.trap(36)
def test_a_large_teacher_that_training_alone_moves_is_not_said_to_be_moved_by_an_evaluation():
    held = nn.Linear(6, 40_000)

    def loss(model: nn.Module, batch: Any) -> Tensor:
        if model.training and run.steps > 3:
            held.weight.data.mul_(0.9)
        return functional.cross_entropy(model(batch[0]), batch[1]) + held(batch[0]).mean().detach()

    plain = job(loss)
    with hasten.prepare(replace(plain, valid=plain.train)) as run:
        for batch in run.batches():
            run.step(batch)
            assert run.evaluate().left_moved == ()


@pytest.mark.trap(36)
@pytest.mark.parametrize("first", [0, 2, 3])
def test_a_large_teacher_that_evaluations_alone_move_comes_back_or_is_told_of(first):
    """first: evaluation that moves it, past torch's count."""
    held, evaluations = nn.Linear(6, 40_000), count()

    def loss(model: nn.Module, batch: Any) -> Tensor:
        if number >= first:
            held.weight.data.mul_(0.9)
        return functional.cross_entropy(model(batch[0]), batch[1]) + held(batch[0]).mean().detach()

    plain = job(loss)
    with hasten.prepare(replace(plain, valid=plain.train)) as run:
        for number in evaluations:
            before = held.weight.detach().clone()
            told = run.evaluate().left_moved
            assert told == (() if held.weight.equal(before) else ("weight",))
            assert not told or number == first >= 2
            if number == 6:
                break


@pytest.mark.trap(36)
@pytest.mark.parametrize("remembers", [False, True])
def test_a_parameter_of_the_model_that_an_evaluation_takes_from_the_loss_is_in_it_again_or_told_of(remembers):
    model, held = nn.Linear(6, 3), nn.Module()
    held.bias = model.bias

    def loss(model: nn.Module, batch: Any) -> Tensor:
        if not model.training:
            held.bias = nn.Parameter(torch.zeros(3))
            if remembers:
                held.is_apart = True
        return functional.cross_entropy(model(batch[0]) + held.bias, batch[1])

    plain = replace(job(loss), model=lambda: model)
    with hasten.prepare(replace(plain, valid=plain.train)) as run:
        assert run.evaluate().left_moved == (("bias",) if remembers else ())
        assert (held.bias is model.bias) is not remembers
