"""Saving behind a training: what the copy holds, when the next save is due, and who waits for whom."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from torch import Tensor

import hasten
from hasten.checkpoint.store import Checkpoint, Store
from hasten.facts.events import Event, Saved
from hasten.training.saving import host_snapshot
from hasten.training.saving.host_snapshot import Snapshots
from hasten.training.saving.saver import Saver, State


class Clock:
    """Goes on only when it is told to."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds


def saver_of(folder: Any, told: list[Event], clock: Clock, saving: hasten.Saving, **options: Any) -> Saver:
    fields: dict[str, Any] = {"before_write": lambda: None, "shares_processor": False, "clock": clock}
    return Saver(Store(folder), saving, told.append, **(fields | options))


def state_of(step: int, weight: Tensor, since: float = 1000.0) -> State:
    return State(step=step, epoch=0, reason="tested", best=False, trees={"run": {"weight": weight}}, since=since)


@pytest.fixture
def held(monkeypatch):
    """A disk that waits until it is let go."""
    free, write = threading.Event(), Store.save

    def save(self: Store, contents: Any, threads: int = 1) -> Checkpoint:
        free.wait()
        return write(self, contents, threads)

    monkeypatch.setattr(Store, "save", save)
    return free


def test_what_is_written_is_the_state_as_it_was_although_the_training_goes_on(tmp_path, held):
    told: list[Event] = []
    saver = saver_of(tmp_path, told, Clock(), hasten.Saving())
    weight = torch.ones(3)
    saver.save(state_of(1, weight))
    weight += 1
    saver.poll()
    assert told == []
    held.set()
    saver.settle()
    saver.close()
    ((event,), (checkpoint,)) = told, Store(tmp_path).found()
    assert isinstance(event, Saved)
    assert (event.step, event.path) == (1, str(checkpoint.path))
    assert checkpoint.read().states["run"]["weight"].tolist() == [1, 1, 1]


def test_where_there_is_no_memory_for_a_copy_the_training_waits_for_the_disk(tmp_path, monkeypatch):
    monkeypatch.setattr(host_snapshot, "free_memory", lambda: 0)  # of this machine, or of its control group
    saver = saver_of(tmp_path, [], Clock(), hasten.Saving())
    weight = torch.ones(3)
    saver.save(state_of(1, weight))
    weight += 1
    saver.close()
    assert Store(tmp_path).found()[0].read().states["run"]["weight"].tolist() == [1, 1, 1]


def test_the_memory_of_a_copy_is_used_again():
    snapshots = Snapshots()
    first, _ = snapshots.of({"a": torch.zeros(4), "b": torch.zeros(2)})
    second, is_copy = snapshots.of({"a": torch.ones(4), "b": torch.ones(3)})
    assert is_copy
    assert second["a"].data_ptr() == first["a"].data_ptr()
    assert [each.tolist() for each in second.values()] == [[1] * 4, [1] * 3]


def test_the_next_save_is_so_far_away_that_saving_costs_one_percent(tmp_path, monkeypatch):
    clock = Clock()
    saver = saver_of(tmp_path, [], clock, hasten.Saving(every_seconds=0.0))
    assert saver.due(1)
    monkeypatch.setattr(Snapshots, "of", _standing_still(clock, 0.5))
    saver.save(state_of(1, torch.ones(1)))
    saver.settle()
    clock.seconds = 1000.0 + 49.9
    assert not saver.due(2)
    clock.seconds = 1000.0 + 50.1
    assert saver.due(2)
    saver.close()


def _standing_still(clock: Clock, seconds: float) -> Any:
    def of(self: Snapshots, tensors: Any) -> Any:
        clock.seconds += seconds
        return dict(tensors), True

    return of


def test_time_that_the_thread_takes_from_the_training_counts_where_both_work_on_the_same_processors(tmp_path):
    def due_at_once(shares: bool) -> bool:
        saving = hasten.Saving(every_seconds=0.0)
        saver = saver_of(tmp_path / str(shares), [], Clock(), saving, shares_processor=shares)
        saver.save(state_of(1, torch.ones(1)))
        saver.settle()
        saver.close()
        return saver.due(2)

    assert due_at_once(shares=False)  # by a clock that stands, training lost no time
    assert not due_at_once(shares=True)


def test_a_save_waits_for_the_one_before_it(tmp_path, held):
    told: list[Event] = []
    saver = saver_of(tmp_path, told, Clock(), hasten.Saving())
    saver.save(state_of(1, torch.ones(1)))
    settle = saver.settle

    def waited() -> None:
        held.set()  # the disk is free only when somebody waits for it
        settle()

    saver.settle = waited
    saver.save(state_of(2, torch.ones(1)))
    assert [event.step for event in told if isinstance(event, Saved)] == [1]
    saver.settle()
    saver.close()
    assert [each.step for each in Store(tmp_path).found()] == [2, 1]


def test_the_best_is_worth_saving_as_soon_as_it_costs_no_more_than_saving_may(tmp_path, monkeypatch):
    clock = Clock()
    saver = saver_of(tmp_path, [], clock, hasten.Saving(every_seconds=600.0))
    monkeypatch.setattr(Snapshots, "of", _standing_still(clock, 0.5))
    saver.save(state_of(1, torch.ones(1)))
    saver.settle()
    clock.seconds = 1000.0 + 49.9
    assert not saver.worth_saving_best()
    clock.seconds = 1000.0 + 50.1
    assert saver.worth_saving_best()
    assert not saver.due(2)
    saver.close()
