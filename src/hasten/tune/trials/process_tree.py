"""The processes that one process has started: found, stopped, killed and measured.

They are those below it, and those of its session, to which an orphan still belongs.

Source: https://man7.org/linux/man-pages/man5/proc_pid_task_children.5.html
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil

# From <linux/prctl.h>.
_SET_PARENT_DEATH_SIGNAL = 1
_STANDING = (b"T", b"t", b"Z", b"X")  # stopped, stopped by a debugger, ended
_PAUSE_SECONDS = 0.002
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096
_TICK_SECONDS = 1 / os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 0.01


def die_with(parent: int) -> None:
    """This process is killed when its parent, which has this number, ends. Nothing outside Linux."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it ended before
        os.kill(os.getpid(), signal.SIGKILL)


def watch_over(pid: int) -> int | None:
    """A descriptor that can be read when this process has ended, also where others hold copies of all that it had open.
    None where the system has none."""
    if not hasattr(os, "pidfd_open"):
        return None
    with suppress(OSError):  # an older kernel
        return os.pidfd_open(pid)
    return None


def descendants(pid: int) -> list[int]:
    """Numbers of all processes below one, zombies included."""
    if not Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").exists():
        with suppress(psutil.Error):
            return [child.pid for child in psutil.Process(pid).children(recursive=True)]
        return []
    found, waiting = list[int](), [pid]
    while waiting:
        children = _children(waiting.pop())
        found += children
        waiting += children
    return found


def _children(pid: int) -> list[int]:
    found: list[int] = []
    with suppress(OSError):  # it has ended
        for thread in os.listdir(f"/proc/{pid}/task"):
            with suppress(OSError):
                found += map(int, Path(f"/proc/{pid}/task/{thread}/children").read_bytes().split())
    return found


def all_of(pid: int) -> list[int]:
    """A process, those below it, and those of the session that it leads."""
    found = [pid, *descendants(pid)]
    return [*found, *(each for each in _session_of(pid) if each not in found)]


def _session_of(leader: int) -> list[int]:
    found = list[int]()
    for each in psutil.pids():
        with suppress(OSError):
            if hasattr(os, "getsid") and os.getsid(each) == leader:
                found.append(each)
    return found


def stop_all(pid: int, *, seconds: float = 1.0) -> None:
    """Stop a process and all of its own. One that the kernel does not let go of within so many seconds stops later.

    A process that is just starting another when it is stopped does that first. So it is over when all that were
    signalled stand still, and a look after that finds no other.
    """
    signalled, until = set[int](), time.monotonic() + seconds
    while (new := {pid, *descendants(pid)} - signalled) or time.monotonic() < until:
        for one in new:
            _signal(one, signal.SIGSTOP)
        signalled |= new
        if all(map(_stands_still, signalled)) and signalled.issuperset(descendants(pid)):
            return


def continue_all(pid: int) -> None:
    """Let a process and all below it go on."""
    for one in (pid, *descendants(pid)):
        _signal(one, signal.SIGCONT)


def kill_all(pid: int, seconds: float) -> None:
    """Kill a process and all of its own, until none is left or for so long."""
    until = time.monotonic() + seconds
    while (left := [each for each in all_of(pid) if _lives(each)]) and time.monotonic() < until:
        for one in left:
            _signal(one, signal.SIGKILL)
        time.sleep(_PAUSE_SECONDS)


def _signal(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def _stands_still(pid: int) -> bool:
    """Whether none of its threads runs, waits or is about to."""
    with suppress(OSError):  # it has ended
        for thread in os.listdir(f"/proc/{pid}/task"):
            with suppress(OSError):
                state = Path(f"/proc/{pid}/task/{thread}/stat").read_bytes().rpartition(b")")[2].split()[0]
                if state not in _STANDING:
                    return False
        return True
    with suppress(psutil.Error):
        return psutil.Process(pid).status() in (psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE)
    return True


def _lives(pid: int) -> bool:
    with suppress(psutil.Error):
        return psutil.Process(pid).status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    return False


def resident_bytes(pid: int) -> int:
    """What a process holds in memory, shared pages in full; 0 for one that has ended."""
    with suppress(OSError, IndexError):
        return int(Path(f"/proc/{pid}/statm").read_bytes().split()[1]) * _PAGE_BYTES
    with suppress(psutil.Error):
        return psutil.Process(pid).memory_info().rss
    return 0


def processor_seconds(pid: int) -> float:
    """Of a process and all below it, those included that have ended and were waited for."""
    return sum(map(_own_processor_seconds, (pid, *descendants(pid))))


def _own_processor_seconds(pid: int) -> float:
    with suppress(OSError, IndexError, ValueError):
        user_to_children = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[11:15]
        return sum(map(int, user_to_children)) * _TICK_SECONDS
    with suppress(psutil.Error):
        return sum(psutil.Process(pid).cpu_times()[:4])
    return 0.0


def proportional_bytes(pid: int) -> int:
    """As resident_bytes, but of a page that several processes share its share only: as of a data set, with workers
    that are copies of the process that loaded it. The kernel walks through all pages for it, where it can; where it
    cannot, it is resident_bytes.

    Source: https://man7.org/linux/man-pages/man5/proc_pid_smaps.5.html
    """
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_bytes().splitlines():
            if line.startswith(b"Pss:"):
                return int(line.split()[1]) * 1024
    return resident_bytes(pid)
