"""What a model and its loss keep in Python is found where it lies, and put back as it was."""

from __future__ import annotations

import itertools
from functools import partial

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
    state.put_back(before)
    assert not state.moved(before)
    assert loss(model) == first
    state.put_back(before)
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
    state.put_back(before)
    assert vars(schedule) == vars(Schedule())


def test_what_is_to_move_stays():
    schedule = Schedule()
    state = PythonState(nn.Linear(1, 1), schedule)
    before = state.read()
    schedule.calls, schedule.recent[0] = 7, 9
    counted = {each for each in state.moved(before) if state.named(each) == "Job.loss.calls"}
    state.put_back(before, but=counted)
    assert (schedule.calls, schedule.recent) == (7, [1, 2])


def test_attributes_of_blocks_are_told_from_others():
    model = nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1))
    state = PythonState(model, None)
    before = state.read()
    model[1].calls = 1
    (moved,) = state.moved(before)
    assert state.lies_in(moved, [model[1]])
    assert not state.lies_in(moved, [model, model[0]])
