"""What draws no random number is read for a cache by several threads, in order, and anything else by one."""

from __future__ import annotations

import errno
import random
import threading
from typing import Any

import pytest
import torch

from hasten.data.cache import packing
from hasten.data.cache.cache_building import open_cache
from hasten.data.cache.packing import packed_in_order, readers
from hasten.data.cache.repeated_reading import SteadyReader, Unreadable
from hasten.data.order.randomness import undisturbed
from hasten.errors import DataFailed
from support.data.cached_samples import Listed, same, samples_of

CORES = 3
SAMPLES = [(index, torch.full((2, index % 5), index)) for index in range(50)]


REASON = "a list holds the same samples every time"


class Named(Listed):
    """Samples of a list, by a class that says that they are steady, as each that reads in its own way has to."""

    steady_reason = REASON

    def __getitem__(self, index: int) -> Any:
        return super().__getitem__(index)


class Meeting(Listed):
    """Two of its samples are read by two threads at once, or not at all."""

    steady_reason = REASON

    def __init__(self, samples: list[Any]) -> None:
        super().__init__(samples)
        self.meet = threading.Barrier(2)

    def __getitem__(self, index: int) -> Any:
        if index in (0, packing.TOGETHER):
            self.meet.wait(60)
        return super().__getitem__(index)


class Failing(Listed):
    steady_reason = REASON

    def __getitem__(self, index: int) -> Any:
        if index in (7, 31):
            raise OSError(f"cannot read file {index}")
        if index == 40:
            raise OSError(errno.EMFILE, "too many open files")
        return super().__getitem__(index)


class Drawing(Listed):
    """Says that it draws nothing, and draws for a sample that nobody looks at twice."""

    steady_reason = REASON

    def __getitem__(self, index: int) -> Any:
        if index == 1:
            random.random()
        return super().__getitem__(index)


@pytest.fixture(autouse=True)
def cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "usable_cores", lambda: CORES)


def found_in(dataset: Any) -> list[Any]:
    with undisturbed():
        return list(packed_in_order(SteadyReader(dataset)))


def test_many_threads_give_the_samples_of_one_in_their_order():
    assert readers(Named(SAMPLES)) == CORES
    assert readers(Listed(SAMPLES)) == 1
    assert found_in(Named(SAMPLES)) == found_in(Listed(SAMPLES))


def test_two_samples_are_read_at_the_same_time():
    assert found_in(Meeting(SAMPLES)) == found_in(Listed(SAMPLES))


def test_a_cache_filled_by_threads_holds_every_sample_bit_for_bit(tmp_path):
    assert same(samples_of(open_cache(Named(SAMPLES), tmp_path)), SAMPLES)


def test_a_sample_that_cannot_be_read_stands_in_its_place():
    found = found_in(Failing(SAMPLES[:40]))
    assert [place for place, each in enumerate(found) if isinstance(each, Unreadable)] == [7, 31]
    assert [each.index for each in found if isinstance(each, Unreadable)] == [7, 31]


def test_an_error_in_a_thread_ends_the_reading_and_names_the_sample():
    with pytest.raises(DataFailed, match="sample 40 could not be read: OSError"):
        found_in(Failing(SAMPLES))


def test_a_data_set_that_draws_though_it_says_it_does_not_fills_no_cache(tmp_path):
    with pytest.raises(DataFailed, match="one of its samples draws from Python's global generator"):
        open_cache(Drawing(SAMPLES), tmp_path)
    assert not [each for each in tmp_path.iterdir() if not each.name.endswith(".lock")]


def test_no_thread_is_left_when_reading_ends(tmp_path):
    before = threading.enumerate()
    open_cache(Named(SAMPLES), tmp_path)
    assert threading.enumerate() == before
