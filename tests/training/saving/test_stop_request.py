"""What a run makes of the signals that come: which counts, how much time it has, and whose they stay."""

from __future__ import annotations

import os
import queue
import select
import signal
import time
from typing import Any

import pytest

from hasten.errors import Misconfigured
from hasten.stop_signals import listening
from hasten.training.saving import stop_request
from hasten.training.saving.stop_request import ONE_CTRL_C_SECONDS, StopRequest, signals_as_requests

pytestmark = pytest.mark.trap(37)


def request_of(grace_seconds: float) -> StopRequest:
    return StopRequest(grace_seconds, lambda text: None, str)


def test_of_all_signals_only_sigterm_says_when_the_process_must_be_gone():
    request = request_of(grace_seconds=30)
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
        request.ask(number)
        assert request.seconds_left is None
    request.ask(signal.SIGTERM)
    assert request.seconds_left is not None
    assert request.seconds_left <= 29


@pytest.mark.parametrize(
    ("came", "counts"),
    [
        ((signal.SIGINT, signal.SIGHUP), signal.SIGHUP),
        ((signal.SIGHUP, signal.SIGINT), signal.SIGHUP),
        ((signal.SIGUSR1, signal.SIGTERM), signal.SIGTERM),
        ((signal.SIGTERM, signal.SIGUSR1), signal.SIGTERM),
    ],
)
def test_of_several_signals_the_most_urgent_one_counts(came, counts):
    request = request_of(grace_seconds=30)
    for number in came:
        request.ask(number)
    assert request.number == counts


def test_the_same_ctrl_c_that_comes_by_two_ways_is_one_and_sigterm_twice_is_no_hurry(monkeypatch):
    now = {"seconds": 100.0}
    monkeypatch.setattr(time, "monotonic", lambda: now["seconds"])
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # which is whose the second Ctrl-C is
    try:
        request = request_of(grace_seconds=30)
        for passed, number, twice in [(0, 15, False), (5, 15, False), (0, 2, False), (0.05, 2, False), (0.5, 2, True)]:
            now["seconds"] += passed
            request.note(number)
            assert request.twice is twice
    finally:
        signal.signal(signal.SIGINT, before)


class HandledOutside:
    """The signal module where a program that Python is embedded in has its own handler for one signal: none that it
    knows of, nor takes to put back."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
        self.number, self.taken = number, False
        self._get, self._set = signal.getsignal, signal.signal
        monkeypatch.setattr(signal, "getsignal", self.getsignal)
        monkeypatch.setattr(signal, "signal", self.signal)

    def getsignal(self, number: int) -> Any:
        return None if number == self.number and not self.taken else self._get(number)

    def signal(self, number: int, handler: Any) -> Any:
        before = self.getsignal(number)
        self._set(number, handler)
        self.taken |= number == self.number
        return before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_that_is_handled_outside_python_is_left_to_that(monkeypatch, number):
    outside = HandledOutside(monkeypatch, number)
    with pytest.raises(ValueError, match="of the run"), signals_as_requests(30, str, str):
        raise ValueError("an error of the run")
    assert not outside.taken


def test_of_a_program_that_calls_hasten_the_second_ctrl_c_is_python_s_and_the_third_does_not_disturb_the_closing(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(stop_request, "LEAVING_SECONDS", 600.0)  # else a stall of this machine would end the tests
    closed = []
    with pytest.raises(KeyboardInterrupt), signals_as_requests(30, closed.append, str):
        signal.raise_signal(signal.SIGINT)
        closed.append("after the first")
        select.select([], [], [], 2 * ONE_CTRL_C_SECONDS)  # as a person takes to press it again
        try:
            signal.raise_signal(signal.SIGINT)
            closed.append("not reached")
        finally:
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGTERM)
            closed.append("all")
    assert "after the first" in closed
    assert "not reached" not in closed
    assert "all" in closed


OTHERS = signal.SIGHUP, signal.SIGXCPU, signal.SIGUSR1, signal.SIGUSR2


def taken() -> set[str]:
    """Of the signals that have other uses as well, those that a run takes."""
    before = {number: signal.getsignal(number) for number in OTHERS}
    with signals_as_requests(30, str, str):
        return {number.name for number in OTHERS if signal.getsignal(number) != before[number]}


def test_a_signal_that_the_job_handles_itself_stays_its_own():
    before = signal.signal(signal.SIGUSR1, lambda number, frame: None)
    try:
        assert taken() == {"SIGHUP", "SIGXCPU"}
    finally:
        signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize(
    ("told", "of_a_cluster"),
    [(None, {"SIGUSR1"}), ("USR2", {"SIGUSR2"}), ("sigusr1, USR2", {"SIGUSR1", "SIGUSR2"}), ("", set[str]())],
)
def test_the_environment_says_by_which_signal_a_cluster_announces_the_end(monkeypatch, told, of_a_cluster):
    monkeypatch.delenv("HASTEN_STOP_SIGNALS", raising=False)
    if told is not None:
        monkeypatch.setenv("HASTEN_STOP_SIGNALS", told)
    assert taken() == {"SIGHUP", "SIGXCPU"} | of_a_cluster


@pytest.mark.parametrize("told", ["KILL", "USR3", "15"])
def test_a_signal_that_no_cluster_announces_the_end_by_is_refused(monkeypatch, told):
    monkeypatch.setenv("HASTEN_STOP_SIGNALS", told)
    with pytest.raises(Misconfigured, match=told):
        taken()


def test_a_timer_that_ticks_does_not_postpone_what_is_due():
    """As the signal of a profiler does, it comes through the same pipe."""
    heard = queue.Queue[bytes]()

    def hear(numbers: bytes) -> float | None:
        heard.put(numbers)
        return 0.05 if numbers else None

    before = signal.signal(signal.SIGALRM, lambda number, frame: None)
    signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
    try:
        with listening([signal.SIGUSR1], hear):
            os.kill(os.getpid(), signal.SIGUSR1)
            assert [heard.get(timeout=150), heard.get(timeout=300)] == [bytes([signal.SIGUSR1]), b""]
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
