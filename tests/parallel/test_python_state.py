"""What a model and its loss keep in Python is found where it lies, and put back as it was."""

from __future__ import annotations

import itertools
import math
import threading
from collections import Counter, OrderedDict, defaultdict
from fractions import Fraction
from functools import partial

import numpy as np
import pytest
from torch import nn

from hasten.parallel.python_state import PythonState

ARRIVED = itertools.count(3)
CALLS = 0


class Schedule:
    def __init__(self):
        self.calls, self.recent, self.options = 0, [1, 2], {"warm": True}

    def __call__(self, model, batch):
        self.calls += 1
        self.recent.append(batch)
        self.options["warm"] = False
        self.options["calls"] = self.calls


def in_closure():
    calls, arrived = 0, itertools.count(5, 2)

    def loss(model, batch):
        nonlocal calls
        calls += 1
        return next(arrived), calls

    return loss


def in_globals(model, batch):
    global CALLS
    CALLS += 1
    return next(ARRIVED), CALLS


def in_model(model, batch):
    model.calls = getattr(model, "calls", 0) + 1
    model[0].training = False
    model.second = nn.Identity()
    model[0].register_forward_hook(lambda *given: None)
    return model.calls


@pytest.mark.parametrize("loss", [in_closure(), in_globals, in_model], ids=["closure", "globals", "model"])
def test_a_call_that_is_put_back_gives_the_same_again(loss):
    loss = partial(loss, batch=0)
    model = nn.Sequential(nn.Linear(2, 2))
    state = PythonState(model, loss)
    before = state.read()
    first = loss(model)
    assert state.moved(before)
    state.put_back(before, state.moved(before))
    assert loss(model) == first
    state.put_back(before, state.moved(before))
    assert len(model) == 1
    assert model[0].training
    assert not model[0]._forward_hooks


def test_an_object_its_lists_and_its_dictionaries_are_put_back():
    schedule = Schedule()
    state = PythonState(nn.Linear(1, 1), lambda model, batch: schedule(model, batch))
    before = state.read()
    schedule(None, 3)
    assert sorted(state.named(each) for each in state.moved(before)) == [
        "Job.loss.schedule.calls",
        "Job.loss.schedule.options.calls",
        "Job.loss.schedule.options.warm",
        "Job.loss.schedule.recent",
    ]
    state.put_back(before, state.moved(before))
    assert vars(schedule) == vars(Schedule())


class Slotted:
    __slots__ = ("calls",)

    def __init__(self):
        self.calls = 0

    def __call__(self, model, batch):
        self.calls += 1
        return self.calls


class OfClass:
    calls = 0

    def __call__(self, model, batch):
        type(self).calls += 1
        return type(self).calls


class Helping(nn.Module):
    def count(self):
        global CALLS
        CALLS += 1
        return CALLS

    def forward(self, batch):
        return self.count()


class Shared:
    """One count in two places."""

    def __init__(self):
        self.first = self.second = itertools.count()

    def __call__(self, model, batch):
        return next(self.first), next(self.second)


class Rebound:
    def __init__(self):
        self.seen, self.names, self.on = {}, {"a"}, True

    def __call__(self, model, batch):
        self.seen = {**self.seen, len(self.seen): True}
        self.names.add(len(self.seen))
        if not self.seen.get(3):
            vars(self)["off"] = vars(self).pop("on", True)
        return len(self.seen), len(self.names), [*vars(self)]


class Collecting:
    def __init__(self):
        self.counter, self.table, self.array = Counter(), defaultdict(int), np.zeros(3)
        self.ordered = OrderedDict({"first": 0})

    def __call__(self, model, batch):
        self.counter["a"] += 1
        self.table[len(self.table)] += 1
        self.array[1] += 1
        self.ordered.pop("first", None)
        self.ordered[len(self.ordered)] = 1
        return self.counter["a"], len(self.table), self.array.tolist(), [*self.ordered]


@pytest.mark.parametrize(
    ("model", "loss"),
    [
        (nn.Linear(1, 1), Collecting()),
        (nn.Linear(1, 1), Slotted()),
        (nn.Linear(1, 1), OfClass()),
        (Helping(), lambda model, batch: model(batch)),
        (nn.Linear(1, 1), Shared()),
        (nn.Linear(1, 1), Rebound()),
    ],
    ids=["collections", "slots", "a class", "a method's global", "a count in two places", "what is bound anew"],
)
def test_wherever_it_is_counted_it_is_counted_again(model, loss):
    state = PythonState(model, loss)
    before = state.read()
    first = loss(model, 0), loss(model, 0)
    state.put_back(before, state.moved(before))
    assert (loss(model, 0), loss(model, 0)) == first
    state.put_back(before, state.moved(before))


class Refusing:
    """As what stands for another object, and has none yet."""

    def __getattribute__(self, key):
        raise RuntimeError("outside of a request")


class Text(str):
    def __eq__(self, other):
        raise RuntimeError("compared")

    __hash__ = str.__hash__


class Linked:
    def __init__(self, behind):
        self.behind = behind


def linked(number):
    behind = None
    for _ in range(number):
        behind = Linked(behind)
    return behind


@pytest.mark.parametrize(
    ("first", "then"),
    [
        (Refusing(), Refusing()),
        (linked(5000), None),
        ((0, 0), (np.zeros(3), 1)),
        ([None], [np.zeros(3)]),
        (itertools.count(Fraction(1, 2)), None),
        (threading.Event(), threading.Event()),
        (Text("a"), Text("b")),
    ],
    ids=[
        "a proxy",
        "a long chain",
        "arrays in a tuple",
        "arrays in a list",
        "a count of fractions",
        "an event",
        "a text of its own",
    ],
)
def test_whatever_users_keep_can_be_looked_at(first, then):
    kept = Linked(first)
    state = PythonState(nn.Linear(1, 1), kept)
    before = state.read()
    kept.behind = then
    state.put_back(before, state.moved(before))
    assert kept.behind is first


def test_objects_of_libraries_are_left_to_themselves():
    event = threading.Event()
    state = PythonState(nn.Linear(1, 1), Linked(event))
    before = state.read()
    event.set()
    state.put_back(before, state.moved(before))
    assert event.is_set()


def test_attributes_of_blocks_are_told_from_others():
    model = nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1))
    state = PythonState(model, None)
    before = state.read()
    model[1].calls = 1
    (moved,) = state.moved(before)
    assert state.lies_in(moved, [model[1]])
    assert not state.lies_in(moved, [model, model[0]])


def test_what_only_grows_is_told_from_a_switch():
    kept = Linked([1])
    kept.table, kept.on = {}, False
    state = PythonState(nn.Linear(1, 1), kept)
    before = state.read()
    kept.behind.append(2)
    kept.table["new"] = 1
    kept.on = True
    grew = {state.named(each): state.grew(each, before) for each in state.moved(before)}
    assert grew == {"Job.loss.behind": True, "Job.loss.table.new": True, "Job.loss.on": False}


def test_what_has_not_moved_or_has_become_large_is_not_told():
    kept = Linked(np.full(2, np.nan))
    kept.table = {"rate": math.nan}
    state = PythonState(nn.Linear(1, 1), kept)
    before = state.read()
    kept.behind[:] = np.nan
    kept.table["rate"] = float("nan")
    assert not state.moved(before)
    kept.table.update(dict.fromkeys(range(100)))
    assert len(state.moved(before)) == 100  # until it is read again
    before = state.read()
    kept.table["more"] = 1
    assert not state.moved(before)


@pytest.mark.parametrize("kind", [np.uint64, np.float16, np.complex64, np.bool_], ids=lambda kind: kind.__name__)
def test_an_array_is_put_back_to_the_bit(kind):
    kept = Linked(np.array([2**64 - 1, 1], dtype=kind) if kind is np.uint64 else np.array([0.1, 1]).astype(kind))
    state = PythonState(nn.Linear(1, 1), kept)
    before, held = state.read(), kept.behind.copy()
    kept.behind[:] = 0
    state.put_back(before, state.moved(before))
    assert kept.behind.tobytes() == held.tobytes()


def test_generators_and_other_iterators_are_named():
    for each in (number for number in range(3)), iter([1]), itertools.cycle([1]), [itertools.count()]:
        assert PythonState(nn.Linear(1, 1), Linked(each)).iterators == ["Job.loss.behind"]
    assert not PythonState(nn.Linear(1, 1), Linked(itertools.count())).iterators
