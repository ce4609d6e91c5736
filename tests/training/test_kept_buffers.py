"""Buffers that appear, grow or move in training go on as they were, and a state in a file makes nothing else."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import hasten
from going_on import check_goes_on
from hasten.errors import Misconfigured
from hasten.training.kept_buffers import Buffers
from support import small_job


class Moving(nn.Module):
    """A linear layer over rows that a buffer shifts; in training `move` makes another of the buffer."""

    def __init__(self, move: Any, begins: Any, persistent: bool = True) -> None:
        super().__init__()
        self.linear, self.move, self.persistent = nn.Linear(6, 3), move, persistent
        if begins is not Ellipsis:
            self.register_buffer("held", begins, persistent=persistent)

    def forward(self, rows: Tensor) -> Tensor:
        if self.training:
            with torch.no_grad():
                self.move(self, rows)
        return self.linear(rows - self.held.float().reshape(-1, 6).mean(0))


def fill(module: Any, rows: Tensor) -> None:
    mean = rows.mean(0)
    module.held = mean if module.held is None else 0.9 * module.held + 0.1 * mean


def register(module: Any, rows: Tensor) -> None:
    if "held" not in module._buffers:
        module.register_buffer("held", torch.zeros(6), persistent=module.persistent)
    module.held.mul_(0.9).add_(rows.mean(0), alpha=0.1)


def grow(module: Any, rows: Tensor) -> None:
    module.held = torch.cat([module.held, rows])[-20:]


def widen(module: Any, rows: Tensor) -> None:
    module.held = module.held.double() + rows.double().mean(0) / 3


def stand(module: Any, rows: Tensor) -> None:
    pass


FORMS = {
    "filled": (fill, lambda: None),
    "registered": (register, lambda: ...),
    "growing": (grow, lambda: torch.zeros(1, 6)),
    "of another type": (widen, lambda: torch.zeros(6)),
    "expanded": (stand, lambda: torch.ones(6).expand(3, 6)),
}


@pytest.mark.trap(36)
@pytest.mark.parametrize("persistent", [True, False], ids=["persistent", "not persistent"])
@pytest.mark.parametrize("form", FORMS)
def test_a_buffer_of_any_form_goes_on_exactly(tmp_path, form, persistent):
    move, begins = FORMS[form]
    resumed = check_goes_on(lambda: small_job(model=lambda: Moving(move, begins(), persistent)), tmp_path)
    assert ("held" in resumed.model.state_dict()) is persistent


@pytest.mark.parametrize("form", FORMS)
def test_the_model_of_a_result_has_the_buffers_that_were_trained(form):
    move, begins = FORMS[form]
    result = hasten.train(small_job(model=lambda: Moving(move, begins())), receivers=[])
    found = result.model().state_dict()
    assert found.keys() == result.weights.keys()
    assert all(
        torch.equal(found[name], each) and found[name].dtype == each.dtype for name, each in result.weights.items()
    )


@pytest.mark.parametrize("average", [None, hasten.ExponentialAverage(0.9)])
def test_a_filled_buffer_goes_on_in_a_model_that_is_averaged(tmp_path, average):
    check_goes_on(lambda: small_job(model=lambda: Moving(fill, None), average=average), tmp_path)


def anew(module: Any, rows: Tensor) -> None:
    module.held = 0.9 * module.held + 0.1 * rows.mean(0)


class Tied(nn.Module):
    """Two buffers that are one tensor, until the first is replaced."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 3)
        self.register_buffer("one", torch.zeros(6))
        self.register_buffer("other", self.one)

    def forward(self, rows: Tensor) -> Tensor:
        if self.training:
            self.one = 0.9 * self.one + 0.1 * rows.mean(0)
        return self.linear(rows - self.one + self.other)


REPLACED = {
    "anew": lambda: Moving(anew, torch.zeros(6)),
    "grown": lambda: Moving(grow, torch.zeros(1, 6)),
    "of another type": lambda: Moving(widen, torch.zeros(6)),
    "one of two that were one": Tied,
}


@pytest.mark.trap(36)
@pytest.mark.parametrize("form", REPLACED)
def test_an_average_over_a_buffer_that_is_replaced_goes_on_exactly(form):
    def job() -> hasten.Job:
        return small_job(model=REPLACED[form], average=hasten.ExponentialAverage(0.9))

    def averages(run: Any) -> dict[str, Tensor]:
        return {name: each.clone() for name, each in run.average.named(run.model).items()}

    with hasten.prepare(job()) as run, hasten.prepare(job()) as resumed:
        for batch in run.batches():
            run.step(batch)
            if run.steps == 4:
                break
        resumed.load_state_dict(run.state_dict())
        now, then = averages(run), averages(resumed)
        assert now.keys() == then.keys()
        assert all(torch.equal(now[name], then[name]) and now[name].dtype == then[name].dtype for name in now)


class Centre(nn.Module):
    """A loss that keeps the mean prediction, from its first call or before."""

    def __init__(self, centre: Tensor | None) -> None:
        super().__init__()
        self.register_buffer("centre", centre, persistent=False)

    def forward(self, prediction: Tensor, target: Tensor) -> Tensor:
        mean = prediction.detach().mean(0)
        self.centre = mean if self.centre is None else 0.9 * self.centre + 0.1 * mean
        return functional.cross_entropy(prediction - self.centre, target)


def closing(module: Centre) -> Any:
    return lambda model, batch: module(model(batch[0]), batch[1])


@pytest.mark.parametrize("centre", [None, torch.zeros(3)], ids=["filled later", "from the first"])
@pytest.mark.parametrize("loss", [hasten.supervised, closing], ids=["supervised", "closed over"])
def test_what_a_loss_keeps_in_buffers_goes_on_exactly(tmp_path, loss, centre):
    check_goes_on(lambda: small_job(loss=loss(Centre(centre))), tmp_path)


@pytest.mark.trap(36)
@pytest.mark.parametrize("average", [None, hasten.ExponentialAverage(0.9), hasten.EqualAverage(0.1)])
def test_buffers_that_were_one_and_are_two_go_on_exactly(tmp_path, average):
    resumed = check_goes_on(lambda: small_job(model=Tied, average=average), tmp_path)
    assert not torch.equal(resumed.model.one, resumed.model.other)


class Joined(nn.Module):
    """Two buffers that become one tensor in the first forward pass, of any order in memory."""

    def __init__(self, order: Any) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 3)
        self.register_buffer("one", order(torch.zeros(3, 6)))
        self.register_buffer("other", order(torch.ones(3, 6)))
        self.register_buffer("calls", torch.tensor(0))

    def forward(self, rows: Tensor) -> Tensor:
        if self.training:
            if self.calls == 0:
                self.other = self.one
            self.calls += 1
            self.one.mul_(0.9).add_(rows.mean(0), alpha=0.1)
        return self.linear(rows - self.one.mean(0) + self.other.sum(0))


def turned(content: Tensor) -> Tensor:
    return content.t().contiguous().t()


@pytest.mark.trap(36)
@pytest.mark.parametrize("order", [torch.clone, turned])
def test_buffers_that_were_two_and_are_one_go_on_exactly(tmp_path, order):
    resumed = check_goes_on(lambda: small_job(model=lambda: Joined(order)), tmp_path)
    assert resumed.model.one is resumed.model.other


@pytest.mark.parametrize("average", [hasten.ExponentialAverage(0.9), hasten.EqualAverage(0.1)])
def test_a_buffer_that_grows_in_its_place_begins_a_new_average(tmp_path, average):
    def grow_in_place(module: Any, rows: Tensor) -> None:
        module.held.data = torch.cat([module.held, rows])[-20:]

    check_goes_on(lambda: small_job(model=lambda: Moving(grow_in_place, torch.zeros(1, 6)), average=average), tmp_path)


@pytest.mark.parametrize("average", [hasten.ExponentialAverage(0.9), hasten.EqualAverage(0.1)])
def test_a_buffer_that_becomes_whole_numbers_has_no_average_any_more(tmp_path, average):
    def count(module: Any, rows: Tensor) -> None:
        module.held = module.held.long() + 1

    check_goes_on(lambda: small_job(model=lambda: Moving(count, torch.zeros(6)), average=average), tmp_path)


def test_a_tensor_that_fits_stays_where_the_model_has_it():
    job = small_job(model=lambda: nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 3)))
    with hasten.prepare(job) as run:
        run.step(next(run.batches()))
        state = run.state_dict()
    with hasten.prepare(job) as resumed:
        before = {name: id(each) for name, each in resumed.model.named_buffers()}
        resumed.load_state_dict(state)
        assert {name: id(each) for name, each in resumed.model.named_buffers()} == before


def test_one_tensor_in_two_places_comes_back_as_one():
    models = [nn.ModuleList([Moving(stand, None), Moving(stand, None)]) for _ in range(2)]
    buffers = [Buffers({"0": model[0], "1": model[1]}) for model in models]
    models[0][0].held = models[0][1].held = torch.ones(6)
    buffers[1].load_state_dict(buffers[0].state_dict(models[0]), torch.device("cpu"))
    assert models[1][0].held is models[1][1].held
    assert models[1][0].held is not models[0][0].held


class Watched(nn.Module):
    """Its property must not be asked."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.plain = nn.Linear(1, 1), 3
        self.bias = nn.Parameter(torch.zeros(1))
        self.register_buffer("table", torch.zeros(4))

    @property
    def asked(self) -> Any:
        raise AssertionError("a property was asked")


def entry(value: Any = None, first: Any = "absent") -> dict[str, Any]:
    return {"value": torch.ones(2) if value is None else value, "persistent": True, "first": first}


CRAFTED = {
    "no such module": {"nowhere.held": entry()},
    "a method": {"model.forward": entry()},
    "a flag of torch's": {"model.training": entry()},
    "an attribute": {"model.plain": entry()},
    "a parameter": {"model.bias": entry()},
    "a module": {"model.layer": entry()},
    "a property": {"model.asked": entry()},
    "torch's own": {"model._buffers": entry()},
    "dunder": {"model.__class__": entry()},
    "no name": {"model.": entry()},
    "another first form": {"model.table": entry(first=[5])},
    "said to be new": {"model.table": entry()},
    "said to have been there": {"model.late": entry(first=[2])},
    "no tensor": {"model.late": entry(value="x")},
    "no entry": {"model.late": 1},
    "too many": {f"model.late{number}": entry() for number in range(10_001)},
}


@pytest.mark.parametrize("changed", CRAFTED.values(), ids=CRAFTED)
def test_a_crafted_state_makes_nothing_but_buffers(changed):
    model = Watched()
    buffers = Buffers({"model": model, "model.layer": model.layer})
    before = dict(vars(model)), list(model._buffers), list(model._parameters), list(model._modules)
    with pytest.raises((ValueError, TypeError, KeyError)):
        buffers.load_state_dict({"same": {}, "changed": changed}, torch.device("cpu"))
    assert (dict(vars(model)), list(model._buffers), list(model._parameters), list(model._modules)) == before


@pytest.mark.parametrize("same", [{"model.table": torch.ones(5)}, {"model.other": torch.ones(4)}, {"x": torch.ones(4)}])
def test_a_buffer_of_another_job_is_refused(same):
    with pytest.raises(ValueError, match="buffer"):
        Buffers({"model": Watched()}).load_state_dict({"same": same, "changed": {}}, torch.device("cpu"))


@pytest.mark.parametrize("size", [5, 20])
def test_a_table_that_is_not_saved_by_its_model_and_has_another_size_now_is_told(size):
    def job(size: int) -> hasten.Job:
        return small_job(model=lambda: Moving(stand, torch.zeros(size, 6), persistent=False))

    with hasten.prepare(job(10)) as run:
        state = run.state_dict()
    with hasten.prepare(job(size)) as other, pytest.raises(Misconfigured, match=r"model\.held"):
        other.load_state_dict(state)


@pytest.mark.parametrize("persistent", [False, True])
def test_a_buffer_that_is_registered_again_with_other_persistence_goes_on_exactly(tmp_path, persistent):
    def again(module: Any, rows: Tensor) -> None:
        begun = module.held
        del module.held
        module.register_buffer("held", begun * 0.9 + rows.mean(0) * 0.1, persistent=not persistent)

    def made(move: Any) -> hasten.Job:
        return small_job(model=lambda: Moving(move, torch.zeros(6), persistent))

    resumed = check_goes_on(lambda: made(again), tmp_path)
    assert ("held" in resumed.model.state_dict()) != persistent


def test_a_resumed_buffer_is_as_persistent_as_it_was_saved(tmp_path):
    def widen_again(module: Any, rows: Tensor) -> None:
        begun = module.held[:6]
        del module.held
        module.register_buffer("held", torch.cat([begun, rows.mean(0)]), persistent=True)

    check_goes_on(lambda: small_job(model=lambda: Moving(widen_again, torch.zeros(6), False)), tmp_path)
