"""What ranks tell each other when they fail, at a store that may not answer."""

from __future__ import annotations

from threading import Event

import pytest
from torch.distributed import HashStore

from hasten.facts.ranks import Ranks
from hasten.parallel.launch.failure_store import Cause, FailureStore, named

USER = Cause(code=10, what="ValueError: it cannot go on")


@pytest.fixture
def store():
    return HashStore()


class Unanswering(HashStore):
    """Of a machine that is out of reach."""

    def clone(self):
        return self

    def set(self, *given):
        Event().wait()

    compare_set = check = set


def test_the_first_failure_is_told_to_all_others_and_not_to_itself(store):
    first, second = FailureStore(store, Ranks(0, 2)), FailureStore(store, Ranks(1, 2))
    assert first.reported() is None
    assert second.report(USER) is None
    for found in (first.report(Cause(code=14, what="lost another rank")), first.reported()):
        assert found is not None
        assert (found.where, found.what, found.exit_code) == ("rank 1", USER.what, 10)
    assert second.reported() is None


def test_who_does_not_speak_in_time_is_silent(store):
    FailureStore(store, Ranks(2, 4)).silent(0.0)
    assert FailureStore(store, Ranks(0, 4)).silent(0.0) == (1, 3)
    assert named((1, 3)) == "ranks 1, 3"


def test_a_store_that_does_not_answer_means_that_the_machine_of_the_first_rank_is_gone(monkeypatch):
    monkeypatch.setattr("hasten.parallel.launch.failure_store._ANSWER_SECONDS", 0.05)
    silent_store = FailureStore(Unanswering(), Ranks(1, 2))
    assert silent_store.answered
    assert silent_store.silent(0.0) == (0,)
    assert not silent_store.answered
    assert silent_store.report(USER) is None
