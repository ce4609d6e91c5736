"""Signal handlers that raise and tests that sleep, planted in every spelling, and innocent neighbours."""

from __future__ import annotations

import pytest

from shape import planted
from shape.handlers import check_handlers, check_sleeps


def found(text: str) -> list[int]:
    return planted.found(check_handlers, text)


RAISING = "def handle(number, frame):\n    raise KeyboardInterrupt\n"


def test_a_signal_handler_that_raises_is_caught():
    for text in [
        "import signal; signal.signal(15, handle)\n" + RAISING,
        "from signal import SIGTERM, signal; signal(SIGTERM, handle)\n" + RAISING,
        "import signal; signal.signal(15, self.handle)\n" + RAISING,
        "import signal; signal.signal(15, lambda number, frame: handle(number, frame))\n" + RAISING,
        "import signal, functools; signal.signal(15, functools.partial(handle, 15))\n" + RAISING,
        "from hasten.stop_signals import listening; listening([15], hear, handle)\n" + RAISING,
        "import signal; signal.signal(15, first)\n" + RAISING + "def first(number, frame): handle(number, frame)",
    ]:
        assert found(text) == [3]


def test_a_signal_handler_that_sets_a_flag_is_let_through():
    for text in [
        "import signal; signal.signal(15, signal.SIG_IGN)\n" + RAISING,
        "import signal; signal.getsignal(15); signals.signal(15, handle)\n" + RAISING,
        "import signal; signal.signal(15, note)\ndef note(number, frame): asked.number = number\n" + RAISING,
        "import signal; signal.signal(15, a)\ndef a(number, frame): a(number, frame)\n",
        "import signal; signal.signal(15, make)\ndef make(number, frame):\n    def f():\n        raise OSError\n",
    ]:
        assert found(text) == []


@pytest.mark.parametrize(
    ("text", "caught"),
    [
        ("import time; time.sleep(1)", True),
        ("from time import sleep as wait; wait(1)", True),
        ("import asyncio; asyncio.sleep(1)", True),
        ("import time; time.perf_counter()", False),
        ("'time.sleep(1)'", False),
    ],
)
def test_a_sleep_is_caught(text, caught):
    assert bool(planted.found(check_sleeps, text, "tests/test_step.py")) is caught
