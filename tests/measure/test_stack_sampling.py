"""The frames of a thread, as who watches it sees them."""

from __future__ import annotations

import sys
import threading

import pytest

from hasten.measure.stack_sampling import callers, share, stack_of


def test_a_thread_that_waits_is_seen_with_all_that_it_was_called_from():
    entered, over = threading.Event(), threading.Event()

    def inner() -> None:
        entered.set()
        over.wait()

    def outer() -> None:
        inner()

    thread = threading.Thread(target=outer)
    thread.start()
    entered.wait()
    ident = thread.ident
    assert ident is not None
    names = [frame.f_code.co_name for frame in stack_of(ident)]
    assert names[names.index("inner") :][:2] == ["inner", "outer"]
    assert names[-1] == "_bootstrap"
    over.set()
    thread.join()
    assert stack_of(ident) == []


def test_a_frame_comes_before_those_that_it_was_called_from():
    frame = sys._getframe()
    found = [*callers(frame)]
    assert found[0] is frame
    assert found[1] is frame.f_back
    assert found[-1].f_back is None


def test_the_share_of_a_place_has_wilsons_interval():
    assert share(0, 0) == (0.0, 0.0, 1.0)
    low, middle, high = share(25, 100)
    assert (low, middle, high) == (pytest.approx(0.1755, abs=1e-4), 0.25, pytest.approx(0.3430, abs=1e-4))
