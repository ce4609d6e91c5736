"""A window that fails leaves nothing that it moved, grew, made or let lie elsewhere; or it is said that it does."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.testing._internal.two_tensor import TwoTensor

import hasten
from going_on import check_goes_on, losses
from hasten.training.buffer_copies import Copies, Place
from support import small_job
from window_starts import LARGE, Holder, in_place, start_of


def job(loss: Any, **changes: Any) -> hasten.Job:
    return small_job(**{"model": lambda: nn.Linear(6, 3), "loss": loss, "log_every": 1} | changes)


@pytest.mark.trap(36)
@pytest.mark.parametrize("at", [1, 2, 3, 5])
def test_a_buffer_that_comes_to_lie_where_a_weight_does_is_put_back_and_the_weight_stays(at):
    model = Holder(torch.zeros(3), lambda module: setattr(module.held, "data", module.weight.data))
    model.weight = nn.Parameter(torch.ones(3))
    start = start_of(model)
    for step in range(1, at + 1):
        start.mark(step)
    model()
    assert start.back(at)
    assert model.weight.tolist() == [1, 1, 1]
    model.weight.data.add_(1)
    assert model.held.tolist() == [0, 0, 0]


@pytest.mark.trap(36)
def test_views_among_buffers_are_still_views_when_one_that_grew_is_put_back():
    model = nn.Module()
    model.register_buffer("whole", torch.zeros(4))
    model.register_buffer("part", model.whole[:2])
    start = start_of(model)
    start.mark(1)
    model.whole.data = torch.cat([model.whole, model.whole])
    assert start.back(1)
    model.whole.fill_(5)
    assert model.part.tolist() == [5, 5]


@pytest.mark.trap(36)
def test_an_expanded_buffer_whose_memory_is_written_is_put_back():
    memory = torch.zeros(1)
    model = Holder(memory.expand(3), lambda module: memory.add_(1))
    start = start_of(model)
    start.mark(1)
    model()
    assert start.back(1)
    assert model.held.tolist() == [0, 0, 0]
    assert memory.tolist() == [0]


@pytest.mark.trap(36)
def test_names_that_are_deleted_and_made_in_a_window_are_as_they_were():
    model = nn.Module()
    model.register_buffer("first", torch.zeros(2))
    model.register_buffer("second", torch.zeros(2))
    start = start_of(model)
    start.mark(1)
    del model.first
    model.register_buffer("third", torch.ones(2))
    model.register_buffer("first", torch.ones(2))
    assert start.back(1)
    assert {name: each.tolist() for name, each in model.named_buffers()} == {"first": [0, 0], "second": [0, 0]}
    assert [*model._buffers] == ["first", "second"]


@pytest.mark.parametrize("at", [1, 2, 3, 6])
def test_a_large_buffer_that_stands_still_is_not_copied_for_having_been_put_back(at):
    model = Holder(torch.zeros(LARGE), lambda module: None)
    start = start_of(model)
    for step in range(1, 10):
        start.mark(step)
        if step == at:
            assert start.back(step)
            start.mark(step)
    assert not start._moving[0].places


@pytest.mark.parametrize("windows", [1, 2])
def test_a_large_buffer_that_stands_still_is_not_copied_for_having_been_beside_one_that_was_healed(windows):
    model = nn.ModuleList([Holder(torch.zeros(LARGE), None), Holder(torch.zeros(2), None)])
    start = start_of(model, windows)
    start.mark(1)
    model[1].held.fill_(torch.inf)
    start.heal(1)
    assert not model[1].held.any()
    for step in range(2, 7):
        start.mark(step)
    assert len(start._moving[0].places) == 1


@pytest.mark.trap(36)
@pytest.mark.parametrize("at", [6, 7, 8, 9])
def test_a_teacher_that_began_late_is_put_back_into_every_window_after_that(at):
    teacher = nn.Linear(3, 3)
    start = start_of(nn.Linear(1, 1), loss=lambda: teacher)
    for step in range(1, at + 1):
        start.mark(step)
        before = teacher.weight.detach().clone()
        if step >= 5:
            with torch.no_grad():
                teacher.weight.add_(1)
    assert start.back(at)
    assert teacher.weight.equal(before)


@pytest.mark.trap(36)
@pytest.mark.parametrize("at", [1, 4])
def test_what_wraps_other_tensors_and_moves_is_not_called_put_back(at):
    model = Holder(TwoTensor(torch.zeros(2), torch.zeros(2)), in_place)
    start = start_of(model)
    for step in range(1, at + 1):
        start.mark(step)
    assert start.back(at)
    start.mark(at + 1)
    model()
    assert not start.back(at + 1)


@pytest.mark.trap(36)
def test_a_buffer_that_the_window_before_registered_is_gone_when_that_one_is_put_back():
    model = nn.Module()
    model.register_buffer("first", torch.zeros(2))
    start = start_of(model, windows=2)
    start.mark(1)
    model.register_buffer("second", torch.ones(2))
    start.mark(2)
    assert start.back(1)
    assert [*model._buffers] == ["first"]


@pytest.mark.trap(36)
@pytest.mark.parametrize("begins", [4, 5, 7])
def test_a_window_is_not_called_put_back_when_the_next_one_has_found_that_a_large_buffer_moved_in_it(begins):
    model = Holder(torch.zeros(LARGE), in_place)
    start = start_of(model, windows=2)
    for step in range(1, begins + 2):
        start.mark(step)
        if step == begins:
            model()
    assert not start.back(begins)
    assert start.back(begins + 1)


@pytest.mark.trap(36)
def test_a_parameter_that_a_teacher_does_not_have_has_not_moved(monkeypatch):
    monkeypatch.setattr("hasten.training.window_start.free_memory", lambda: 0)
    teacher = nn.Linear(3, 3, bias=False)
    start = start_of(nn.Linear(1, 1), windows=2, loss=lambda: teacher)
    for step in range(1, 6):
        start.mark(step)
        assert step == 1 or start.back(step - 1)


@pytest.mark.trap(36)
@pytest.mark.parametrize("grown", [False, True])
def test_a_dictionary_of_parameters_that_grows_goes_on_exactly(tmp_path, grown):
    """grown: it does when the run goes on, too."""

    def made() -> hasten.Job:
        bank, calls = nn.ParameterDict({"0": torch.ones(3)}), count(1)

        def loss(model: nn.Module, batch: Any) -> Tensor:
            name = str(next(calls) // 2 if grown else 1)
            if name not in bank:
                bank[name] = nn.Parameter(model(batch[0]).detach().mean(0))
            weight = torch.stack([each.detach() for _, each in bank.items()]).mean(0)
            return functional.cross_entropy(model(batch[0]) * weight, batch[1])

        return job(loss)

    if not grown:
        check_goes_on(made, tmp_path)
        return
    with hasten.prepare(made()) as run:
        run.keep_window_starts()
        losses(run)
        bank = next(module for module in run.built.loss_parameters.modules if isinstance(module, nn.ParameterDict))
        kept = [*bank]
        bank["new"] = nn.Parameter(torch.ones(3))
        assert run._window_start is not None
        assert run._window_start.back(run.steps)
        assert [*bank] == [name for name, _ in bank.items()] == [*bank._parameters]
        assert "new" not in bank
        assert {*bank} <= {*kept}


def test_what_a_skipped_window_has_made_or_grown_stays_when_buffers_are_healed():
    model = nn.ModuleList([nn.BatchNorm1d(2), Holder(torch.full((2,), -torch.inf), None)])
    start = start_of(model, windows=2)
    start.mark(1)
    model[0].running_mean.fill_(torch.inf)
    model[1].held = torch.full((4,), -torch.inf)
    model[1].register_buffer("table", torch.ones(3))
    start.heal(1)
    assert model[0].running_mean.tolist() == [0, 0]
    assert model[1].held.shape == (4,)
    assert model[1].table.tolist() == [1, 1, 1]


def test_what_a_skipped_window_has_filled_stays_where_its_module_remembers_that_unless_it_is_infinite():
    model: Any = nn.Module()
    model.register_buffer("table", torch.zeros(4))
    model.register_buffer("mean", torch.zeros(2))
    model.norm, model.filled = nn.BatchNorm1d(2), 0
    start = start_of(model, windows=2)
    start.mark(1)
    model.norm.running_mean.fill_(torch.inf)
    model.mean.fill_(torch.inf)
    model.table.fill_(1)
    model.filled = 4
    start.heal(1)
    assert model.table.tolist() == [1, 1, 1, 1]
    assert model.mean.tolist() == model.norm.running_mean.tolist() == [0, 0]


@pytest.mark.trap(36)
@pytest.mark.parametrize("holder", ["_buffers", "_parameters"])
def test_what_takes_the_name_of_another_is_put_back_in_later_windows(holder):
    held = nn.Linear(2, 2)
    held.register_buffer("first", torch.zeros(2))
    start = start_of(nn.Linear(1, 1), loss=lambda: held)
    for step in range(1, 6):
        start.mark(step)
        if step == 1:
            del getattr(held, holder)["first" if holder == "_buffers" else "bias"]
            getattr(held, holder)["second"] = nn.Parameter(torch.zeros(2), requires_grad=False)
    held.second.data.add_(1)
    assert start.back(5)
    assert held.second.tolist() == [0, 0]


@pytest.mark.trap(36)
def test_a_buffer_whose_memory_was_given_back_gets_its_content_again():
    model = Holder(torch.arange(3.0), lambda module: module.held.untyped_storage().resize_(0))
    start = start_of(model)
    start.mark(1)
    model()
    assert start.back(1)
    assert model.held.tolist() == [0, 1, 2]


@pytest.mark.trap(36)
def test_memory_that_was_given_back_is_not_read_when_another_tensor_has_got_its_place():
    model, copies = Holder(torch.zeros(3), None), Copies()
    places = [Place(model._buffers, "held")]
    copies.take([model._buffers], places)
    model.held.untyped_storage().resize_(0)
    model.held.data = torch.arange(3.0)
    copies._where[0] = model.held.data_ptr()  # as if the allocator had given the same place out again
    copies.take([model._buffers], places)
    model.held.zero_()
    copies.put_back()
    assert model.held.tolist() == [0, 1, 2]


@pytest.mark.trap(36)
def test_a_parameter_that_takes_the_place_of_the_models_own_in_the_loss_is_put_back():
    model, held = nn.Linear(2, 2), nn.Module()
    held.weight = model.weight
    start = start_of(model, loss=lambda: held)
    for step in range(1, 6):
        start.mark(step)
    held.weight = snapshot = nn.Parameter(model.weight.detach().clone())
    start.mark(6)
    assert start.back(6)
    assert held.weight is snapshot


@pytest.mark.trap(36)
@pytest.mark.parametrize("turn", [Tensor.t_, lambda held: setattr(held, "data", held.data.view(torch.int32))])
def test_a_buffer_that_was_turned_where_it_lies_is_put_back_as_it_was_then(turn):
    model = Holder(torch.arange(9.0).view(3, 3), lambda module: module.held.zero_())
    start = start_of(model)
    start.mark(1)
    turn(model.held)
    before = model.held.clone()
    start.mark(2)
    model()
    assert start.back(2)
    assert model.held.dtype == before.dtype
    assert torch.equal(model.held, before)


def test_a_name_that_comes_and_goes_is_copied_once():
    model = nn.Module()
    start = start_of(model)
    for step in range(1, 20):
        if step % 2:
            model.register_buffer("held", torch.zeros(2))
        else:
            del model.held
        start.mark(step)
    assert len(start._moving[0].places) == 1


@pytest.mark.trap(36)
@pytest.mark.parametrize("other", [None, "text", 3])
def test_a_list_of_parameters_with_other_items_is_as_long_as_it_was_when_it_is_put_back(other):
    held = nn.ParameterList([torch.ones(3), other, torch.full((3,), 5.0)])
    start = start_of(nn.Linear(1, 1), loss=lambda: held)
    start.mark(1)
    held.append(torch.zeros(3))
    assert start.back(1)
    assert len(held) == 3
    assert held[1] is other
    assert held[2].tolist() == [5, 5, 5]


COMPRESSED = {
    "csr": Tensor.to_sparse_csr,
    "csc": Tensor.to_sparse_csc,
    "bsr": lambda tensor: tensor.to_sparse_bsr((2, 2)),
    "bsc": lambda tensor: tensor.to_sparse_bsc((2, 2)),
}


@pytest.mark.trap(36)
@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize("kind", COMPRESSED)
@pytest.mark.parametrize(
    "move",
    [
        lambda held, make: held.values().mul_(2),
        lambda held, make: held.copy_(make(torch.eye(4).flip(0))),
        lambda held, make: held.resize_as_sparse_(make(torch.ones(4, 4))).copy_(make(torch.ones(4, 4))),
    ],
    ids=["values", "places", "number"],
)
def test_what_lies_in_a_compressed_buffer_is_put_back(kind, move):
    make = COMPRESSED[kind]
    model = Holder(make(torch.eye(4)), lambda module: move(module.held, make))
    start = start_of(model)
    for step in (1, 2, 3, 4):
        start.mark(step)
        assert model.held.to_dense().equal(torch.eye(4))
        model()
        assert not model.held.to_dense().equal(torch.eye(4))
        assert start.back(step)
    assert model.held.to_dense().equal(torch.eye(4))
