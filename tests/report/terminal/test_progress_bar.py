"""How far a long piece of work has come, as it is shown."""

from __future__ import annotations

import io

from hasten.report.terminal.progress_bar import ProgressBar

ERASED = "\x1b[2K"


class Screen(io.StringIO):
    encoding = "utf-8"  # type: ignore[assignment]

    def __init__(self, terminal: bool) -> None:
        super().__init__()
        self._terminal = terminal

    def isatty(self) -> bool:
        return self._terminal


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def shown(terminal: bool, seconds: list[float], monkeypatch) -> str:
    """What is written when a tenth of the work takes each of these times, and the rest is left undone."""
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    clock, screen = Clock(), Screen(terminal)
    waiting = ProgressBar("packing\x1b[31m", screen, clock=clock)
    for tenth, took in enumerate(seconds, start=1):
        clock.now += took
        waiting(tenth, 10)
    waiting.close()
    return screen.getvalue()


def test_short_work_shows_nothing(monkeypatch):
    for terminal in (True, False):
        assert shown(terminal, [0.19] * 10, monkeypatch) == ""


def test_elsewhere_than_on_a_terminal_a_line_tells_every_tenth_and_the_time_left(monkeypatch):
    assert shown(False, [1.0] * 10, monkeypatch).splitlines() == [
        f"  packing[31m   {tenth}0 %, {10 - tenth} s left" for tenth in range(2, 10)
    ] + ["  packing[31m   100 %"]


def test_on_a_terminal_a_bar_changes_in_place_and_goes_away(monkeypatch):
    text = shown(True, [2.0] * 5, monkeypatch)
    for tenth in range(1, 6):
        assert f"{tenth}0 %, {2 * (10 - tenth)} s left" in text
    assert text.count("packing[31m") <= 6  # the bar is drawn once more before it is taken away
    assert text.endswith(ERASED)


def test_a_bar_is_drawn_ten_times_a_second_at_most(monkeypatch):
    text = shown(True, [2.0, 0.01, 0.01, 0.09], monkeypatch)
    assert [f"{tenth}0 %" in text for tenth in range(1, 5)] == [True, False, False, True]


def test_elsewhere_than_on_a_terminal_work_that_does_not_say_how_much_is_done_shows_that_it_lives():
    clock, screen = Clock(), Screen(terminal=False)
    waiting = ProgressBar("starting the script", screen, clock=clock)
    for _ in range(50):
        clock.now += 0.5
        waiting(0, 1)
    assert screen.getvalue().splitlines() == [f"  starting the script  {seconds} s so far" for seconds in (10, 20)]
