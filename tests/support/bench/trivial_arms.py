"""Arms that load nothing: for tests of the benchmark's own machinery."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from threading import Event


def additions(many: int = 20_000) -> Callable[[int], None]:
    def window(steps: int) -> None:
        for _ in range(steps):
            sum(range(many))

    return window


def claims(seconds: float) -> Callable[[int], float]:
    """Says that a step took so many seconds, and ten times as many in its first window."""
    slow = [10.0]
    return lambda steps: steps * seconds * (slow.pop() if slow else 1.0)


def cannot_be_built() -> Callable[[int], None]:
    raise LookupError("no such model")


def is_killed() -> Callable[[int], None]:
    def window(steps: int) -> None:
        os.write(2, b"last words\n")
        os.kill(os.getpid(), signal.SIGKILL)

    return window


def never_answers() -> Callable[[int], None]:
    def window(steps: int) -> None:
        Event().wait()

    return window


def notes_its_turns(name: str, journal: str) -> Callable[[int], None]:
    def window(steps: int) -> None:
        with open(journal, "a") as file:
            file.write(f"{name} begins\n{name} ends\n")

    return window


def starts_another(journal: str) -> Callable[[int], None]:
    """Writes its own number and that of a process that it starts."""
    started = subprocess.Popen([sys.executable, "-c", "import threading; threading.Event().wait()"])
    Path(journal).write_text(f"{os.getpid()} {started.pid}")
    return lambda steps: None


def tells_that_it_is_built(journal: str) -> Callable[[int], None]:
    """Adds its own number to the journal; its window never ends."""
    with open(journal, "a") as file:
        file.write(f" {os.getpid()}")
    return never_answers()


def looks_at_others(journal: str) -> Callable[[int], None]:
    """Its window ends when all processes that the journal names are stopped."""

    def window(steps: int) -> None:
        for process in Path(journal).read_text().split():
            while not re.search(r"State:\s+T", Path(f"/proc/{process}/status").read_text()):
                os.sched_yield()

    return window


def waits_for_another(folder: str, name: str, other: str) -> Callable[[int], None]:
    """While it is built, until the other one is being built."""
    Path(folder, name).touch()
    while not Path(folder, other).exists():
        Event().wait(0.01)
    return additions()
