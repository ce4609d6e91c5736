"""What a step can come to is found, wherever it lies, under the same name in every run; and no code runs for it."""

from __future__ import annotations

import argparse
import collections
import functools
import random
from collections.abc import Callable
from types import MappingProxyType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import hasten
from going_on import check_goes_on
from hasten.training import reachable
from hasten.training.generators import Generators
from hasten.training.reachable import reached
from support import small_job

CPU = torch.device("cpu")
GLOBAL = random.Random(4)


class Helper:
    shared = random.Random(8)

    def __init__(self) -> None:
        self.draws = random.Random(4)

    def factor(self) -> float:
        return self.draws.random()

    @property
    def asked(self) -> Any:
        raise AssertionError("a property was asked")


class Slotted:
    __slots__ = ("draws",)

    def __init__(self) -> None:
        self.draws = np.random.default_rng(4)


def scaled(factor: Callable[[], float]) -> Any:
    return lambda model, batch: functional.cross_entropy(model(batch[0]) * (1 + factor()), batch[1])


def from_supervised() -> Any:
    draws = random.Random(4)
    return hasten.supervised(lambda scores, labels: functional.cross_entropy(scores * draws.random(), labels))


def from_a_wrapper() -> Any:
    draws = random.Random(4)

    def inner(model: Any, batch: Any) -> Tensor:
        return functional.cross_entropy(model(batch[0]), batch[1])

    @functools.wraps(inner)
    def outer(model: Any, batch: Any) -> Tensor:
        return inner(model, (batch[0] * draws.random(), batch[1]))

    return outer


def from_a_default() -> Any:
    def loss(model: Any, batch: Any, draws: Any = random.Random(4)) -> Tensor:  # noqa: B008  made anew each time
        return functional.cross_entropy(model(batch[0]) * draws.random(), batch[1])

    return loss


def from_a_keyword_default() -> Any:
    def loss(model: Any, batch: Any, *, draws: Any = random.Random(4)) -> Tensor:  # noqa: B008
        return functional.cross_entropy(model(batch[0]) * draws.random(), batch[1])

    return loss


def global_factor() -> float:
    return [GLOBAL.random() for _ in range(2)][1]


def from_a_global() -> Any:
    GLOBAL.seed(4)
    return scaled(global_factor)


def from_a_class() -> Any:
    Helper.shared.seed(8)
    helper = Helper()
    return scaled(lambda: helper.shared.random())


def from_a_partial() -> Any:
    return functools.partial(
        lambda draws, model, batch: functional.cross_entropy(model(batch[0]) * draws[0].random(), batch[1]),
        [random.Random(4)],
    )


LOSSES = {
    "supervised": from_supervised,
    "a wrapper": from_a_wrapper,
    "a default": from_a_default,
    "a keyword default": from_a_keyword_default,
    "a global of a global": from_a_global,
    "a class": from_a_class,
    "a partial's list": from_a_partial,
    "a closure": lambda: scaled(functools.partial(random.Random.random, random.Random(4))),
    "a method of its own": lambda: scaled(random.Random(4).random),
    "a method": lambda: scaled(Helper().factor),
    "no_grad": lambda: scaled(torch.no_grad()(Helper().factor)),
    "slots": lambda: scaled(functools.partial(lambda held: held.draws.random(), Slotted())),
}


class Model(nn.Module):
    def __init__(self, held: Any, factor: Any) -> None:
        super().__init__()
        self.linear, self.held, self.factor = nn.Linear(6, 3), held, factor

    def forward(self, rows: Tensor) -> Tensor:
        return self.linear(rows) * (1 + self.factor(self.held))


class DrawsFromAGlobal(nn.Linear):
    def forward(self, rows: Tensor) -> Tensor:
        return super().forward(rows) * global_factor()


def hooked() -> nn.Module:
    model, draws = nn.Linear(6, 3), random.Random(4)
    model.register_forward_pre_hook(lambda module, args: (args[0] * draws.random(),))
    return model


def drawing_from_a_global() -> nn.Module:
    GLOBAL.seed(4)
    return DrawsFromAGlobal(6, 3)


MODELS = {
    "a list": lambda: Model([random.Random(4)], lambda held: held[0].random()),
    "a dictionary": lambda: Model({1: random.Random(4)}, lambda held: held[1].random()),
    "a dictionary of a kind": lambda: Model(
        collections.OrderedDict(a=random.Random(4)), lambda held: held["a"].random()
    ),
    "a set of one": lambda: Model({random.Random(4)}, lambda held: next(iter(held)).random()),
    "a frozen set of one": lambda: Model(frozenset({random.Random(4)}), lambda held: next(iter(held)).random()),
    "a namespace": lambda: Model(SimpleNamespace(draws=random.Random(4)), lambda held: held.draws.random()),
    "a command line's": lambda: Model(argparse.Namespace(draws=random.Random(4)), lambda held: held.draws.random()),
    "a view": lambda: Model(MappingProxyType({"a": random.Random(4)}), lambda held: held["a"].random()),
    "a helper": lambda: Model(Helper(), lambda held: held.draws.random()),
    "a hook": hooked,
    "a global": drawing_from_a_global,
}


@pytest.mark.trap(36)
@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
def test_what_a_loss_draws_from_goes_on_exactly(tmp_path, loss):
    check_goes_on(lambda: small_job(loss=loss()), tmp_path)


@pytest.mark.trap(36)
@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_what_a_model_draws_from_goes_on_exactly(tmp_path, model):
    check_goes_on(lambda: small_job(model=model), tmp_path)


def found(model: nn.Module, loss: Any = None) -> list[str]:
    return [each.place for each in reached(model, loss, CPU).generators]


def test_the_nearest_place_gives_the_name_and_no_name_is_given_twice():
    helper, other = Helper(), random.Random(1)
    model = nn.Sequential(nn.Linear(1, 1))
    model.deep, model[0].near = {"a": [helper.draws]}, helper.draws

    def loss() -> Any:
        return other, GLOBAL

    loss.other = random.Random(2)
    assert found(model, loss) == ["model.0.near", "loss.other", "loss.GLOBAL", "loss.other#2"]


def test_another_generator_in_the_same_place_is_the_one_that_is_saved():
    model = nn.Linear(1, 1)
    model.draws = random.Random(1)
    generators = Generators(reached(model, None, CPU).generators)
    model.draws = random.Random(2)
    assert generators.states() == {"model.draws": random.Random(2).getstate()}
    del model.draws
    assert generators.states() == {}


def test_what_everyone_draws_from_is_not_saved_once_more():
    model = nn.Linear(1, 1)
    model.draws = [random.random, np.random.rand, torch.default_generator, random.SystemRandom()]
    assert found(model) == []


class Hostile:
    """Whoever asks it for anything fails."""

    def __getattribute__(self, name: str) -> Any:
        raise AssertionError(name)

    __len__ = __iter__ = __hash__ = __eq__ = __bool__ = lambda self, *args: (_ for _ in ()).throw(AssertionError())  # type: ignore[assignment]


class HostileDict(dict[Any, Any]):
    __getitem__ = __iter__ = __len__ = items = keys = lambda self, *args: (_ for _ in ()).throw(AssertionError())  # type: ignore[assignment]


class HostileSet(set[Any]):
    __iter__ = __len__ = pop = lambda self, *args: (_ for _ in ()).throw(AssertionError())  # type: ignore[assignment]


class HostileList(list[Any]):
    __getitem__ = __iter__ = __len__ = lambda self, *args: (_ for _ in ()).throw(AssertionError())  # type: ignore[assignment]


def test_no_code_of_the_users_runs():
    model, draws = nn.Linear(1, 1), random.Random(1)
    model.held = [Hostile(), HostileDict(a=draws), HostileList([random.Random(2)]), Helper()]
    assert found(model) == ["model.held.1.a", "model.held.2.0", "model.held.3.draws", "model.held.3.Helper.shared"]
    model.held = [HostileSet([draws]), MappingProxyType(HostileDict(a=random.Random(2)))]
    assert found(model) == ["model.held.0.0", "model.held.1.a"]


def test_what_is_installed_is_not_gone_through():
    model = nn.Linear(1, 1)
    model.tools = [collections.UserDict(draws=random.Random(1)), torch, np.random]
    assert found(model) == []


def test_of_a_set_of_several_none_is_found_as_their_order_is_another_in_each_process():
    model = nn.Linear(1, 1)
    model.draws = {random.Random(1), random.Random(2)}
    assert found(model) == []


def test_a_circle_and_a_deep_pile_come_to_an_end():
    model, circle = nn.Linear(1, 1), list[Any]()
    circle.append(circle)
    for _ in range(500):
        circle = [circle]
    model.held = circle
    walked = reached(model, None, CPU)
    assert (walked.generators, walked.whole) == ((), False)


def test_only_the_first_items_of_a_long_list_are_looked_at():
    model = nn.Linear(1, 1)
    model.held = [random.Random(1), *[0.0] * 2_000_000, random.Random(2)]
    assert found(model) == ["model.held.0"]


def test_so_much_that_not_all_is_looked_through_is_said(monkeypatch):
    monkeypatch.setattr(reachable, "_MOST", 100)

    def model() -> nn.Module:
        made = nn.Linear(6, 3)
        made.held = [[0.0] for _ in range(200)]
        return made

    with hasten.prepare(small_job(model=model)) as run:
        assert any("not all was looked through" in notice for notice in run.notices)


def test_generators_that_are_missing_or_new_are_told_and_the_others_go_on():
    model = nn.Linear(1, 1)
    model.one, model.two = random.Random(1), random.Random(2)
    generators = Generators(reached(model, None, CPU).generators)
    saved = {"model.one": random.Random(7).getstate(), "model.gone\x1b": random.Random(8).getstate()}
    lost, new = generators.told(saved)
    assert lost.startswith("model.gone\\x1b drew")
    assert new.startswith("model.two draws")
    generators.go_on_from(saved)
    assert model.one.getstate() == random.Random(7).getstate()
    assert generators.told(generators.states()) == []


class Centre(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("centre", torch.zeros(3))

    def forward(self, prediction: Tensor, target: Tensor) -> Tensor:
        return functional.cross_entropy(prediction - self.centre, target)


def test_of_a_loss_that_is_copied_to_the_device_the_copy_is_found():
    given = Centre()
    device = torch.device("meta")
    modules = reached(nn.Linear(1, 1), hasten.supervised(given), device).modules
    (copied,) = [each for each in modules.values() if isinstance(each, Centre)]
    assert copied.centre.device == device
    assert given.centre.device == CPU
    again = reached(nn.Linear(1, 1), hasten.supervised(given), CPU).modules
    assert list(again) == list(modules)
    assert given in again.values()
