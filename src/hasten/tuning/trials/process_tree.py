"""The processes of a trial: found, stopped, killed and measured.

A trial leads a session of its own, and what it starts is in its process group: one signal stops or continues all of it.
At the end its session and its descendants are killed, but no daemon that has a session and a parent of its own.

Source: https://man7.org/linux/man-pages/man5/proc_pid_task_children.5.html
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from contextlib import suppress

import psutil

from hasten.facts.machine import killed_for_memory

_SET_PARENT_DEATH_SIGNAL = 1  # from <linux/prctl.h>
_PAUSE_SECONDS = 0.002


def die_with(parent: int, number: int = signal.SIGKILL) -> None:
    """Send this process a signal when its parent, which has this number, ends. Does nothing outside Linux."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, number, 0, 0, 0)
    if os.getppid() != parent:  # it ended before
        os.kill(os.getpid(), number)


def descendants(pid: int) -> list[int]:
    """Numbers of all processes below one, zombies included."""
    try:
        return [child.pid for child in psutil.Process(pid).children(recursive=True)]
    except psutil.Error:  # it has ended
        return []


def all_of(pid: int) -> list[int]:
    """A process, those below it, and those of the session that it leads."""
    found = [pid, *descendants(pid)]
    for each in psutil.pids():
        with suppress(OSError):
            if each not in found and os.getsid(each) == pid:
                found.append(each)
    return found


def stop_all(pid: int) -> None:
    """Stop the process group of a process."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGSTOP)


def continue_all(pid: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGCONT)


def kill_all(pid: int, seconds: float) -> bool:
    """Kill a process and all of its own. False where one still lives after so many seconds."""
    until, family = time.monotonic() + seconds, {pid, *descendants(pid)}
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
    while True:
        family |= {*all_of(pid)}
        living = [each for each in family if _lives(each)]
        if not living or time.monotonic() > until:
            return not living
        for each in living:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(each, signal.SIGKILL)
        time.sleep(_PAUSE_SECONDS)


def _lives(pid: int) -> bool:
    with suppress(psutil.Error):
        return psutil.Process(pid).status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    return False


def how_it_ended(exit_code: int) -> str:
    """exit_code: below 0 the number of a signal."""
    if exit_code >= 0:
        return f"ended with exit code {exit_code}"
    return f"was killed by {signal.Signals(-exit_code).name}"


def ended_for_memory(exit_code: int, killed_before: int | None) -> bool:
    """Whether the system killed it because memory was full. killed_before: killed_for_memory() when it began."""
    killed = killed_for_memory()
    return exit_code == -signal.SIGKILL and killed is not None and killed_before is not None and killed > killed_before


def resident_bytes(pid: int) -> int:
    """Memory that a process holds, shared pages in full; 0 for one that has ended."""
    with suppress(psutil.Error):
        return psutil.Process(pid).memory_info().rss
    return 0


def processor_seconds(pid: int) -> float:
    """Of a process and all below it, those included that have ended and were waited for."""
    seconds = 0.0
    for each in (pid, *descendants(pid)):
        with suppress(psutil.Error):
            seconds += sum(psutil.Process(each).cpu_times()[:4])
    return seconds
