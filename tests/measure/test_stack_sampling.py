"""The frames of a thread, as who watches it sees them."""

from __future__ import annotations

import gc
import sys
import threading
from typing import Any

import pytest

from hasten.measure import stack_sampling as stacks
from hasten.measure.stack_sampling import callers, stack_of


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


class Garbage:
    """Refers to itself, and says when it is collected."""

    def __init__(self, collected: list[str]) -> None:
        self.itself, self.collected = self, collected

    def __del__(self) -> None:
        self.collected.append("collected")


@pytest.mark.parametrize("enabled", [True, False])
def test_nothing_is_collected_while_frames_are_followed_and_the_collector_stays_as_it_was(enabled, monkeypatch):
    """What is collected may run Python, which lets the thread move on, and what it has left is followed then."""
    entered, over, collected = threading.Event(), threading.Event(), list[str]()

    def deep(depth: int) -> None:
        if depth:
            deep(depth - 1)
        else:
            entered.set()
            over.wait()

    outwards, usual, meanwhile = stacks._outwards, gc.get_threshold(), list[str]()

    def collecting(innermost: Any) -> Any:
        gc.set_threshold(1, 1, 1)  # at every allocation
        yield from outwards(innermost)
        meanwhile.extend(collected)
        gc.set_threshold(*usual)

    thread = threading.Thread(target=deep, args=(50,))
    thread.start()
    entered.wait()
    ident, was_enabled = thread.ident, gc.isenabled()
    assert ident is not None
    monkeypatch.setattr(stacks, "_outwards", collecting)
    gc.collect()
    (gc.enable if enabled else gc.disable)()
    try:
        Garbage(collected)
        assert len(stack_of(ident)) > 50
        assert gc.isenabled() is enabled
    finally:
        (gc.enable if was_enabled else gc.disable)()
        over.set()
        thread.join()
    assert meanwhile == []
