"""The processes that descend from one, and what holds them together without the rights of an administrator.

On Linux a process can declare itself the one that orphans below it fall to (a subreaper). A process that leaves its
group, its session and its parent, as a daemon does, is still found below it, until its last descendant has ended; and
"no descendant is left" can be asked of the kernel, without a race.

Elsewhere an orphan falls to the system's first process. There only what still has its parent is found.

Sources: https://man7.org/linux/man-pages/man2/PR_SET_CHILD_SUBREAPER.2const.html,
https://man7.org/linux/man-pages/man5/proc_pid_task_children.5.html
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil

# From <linux/prctl.h>.
_SET_PARENT_DEATH_SIGNAL, _SET_CHILD_SUBREAPER = 1, 36
_STANDING = (b"T", b"t", b"Z", b"X")  # stopped, stopped by a debugger, ended
_PAUSE_SECONDS = 0.002
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096
_TICK_SECONDS = 1 / os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 0.01


def adopt_orphans() -> None:
    """From now on orphans among this process's descendants become its children. Nothing outside Linux."""
    _prctl(_SET_CHILD_SUBREAPER, 1)


def die_with(parent: int) -> None:
    """This process is killed when its parent, which has this number, ends. Nothing outside Linux."""
    _prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before
        os.kill(os.getpid(), signal.SIGKILL)


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


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


def stop_below(pid: int, *, seconds: float = 1.0) -> None:
    """Stop every descendant of a process. One that the kernel does not let go of within so many seconds stops later.

    A process that is just starting another when it is told to stop does that first, and the new one knows of nothing.
    So it is over when all that were told stand still, and a look after that finds no other.
    """
    told, until = set[int](), time.monotonic() + seconds
    while (new := set(descendants(pid)) - told) or time.monotonic() < until:
        for one in new:
            _signal(one, signal.SIGSTOP)
        told |= new
        if all(map(_stands_still, told)) and told.issuperset(descendants(pid)):
            return


def continue_below(pid: int) -> None:
    """Let every descendant of a process go on."""
    for one in descendants(pid):
        _signal(one, signal.SIGCONT)


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


def end_descendants(spare: Callable[[int], bool] = lambda pid: False, *, seconds: float = 5.0) -> bool:
    """Kill and reap what is below this process, but for what is spared; a child of its own with all that is below it.

    For a process that adopts orphans. False where something was left after so many seconds: a process of another user's
    rights, or one that the kernel does not let go of.
    """
    until = time.monotonic() + seconds
    while children := [child for child in _own_children() if not spare(child)]:
        for child in children:
            for pid in (child, *(one for one in descendants(child) if not spare(one))):
                _signal(pid, signal.SIGKILL)
        # A process that ends hands its children on before it can be reaped: the next look sees them.
        ended = [child for child in children if _reaped(child)]
        if not ended:
            if time.monotonic() > until:
                return False
            time.sleep(_PAUSE_SECONDS)
    return True


def wait_for_children(seconds: float) -> None:
    """Until all have ended and are reaped, or for so long."""
    until = time.monotonic() + seconds
    while not all([_reaped(child) for child in _own_children()]) and time.monotonic() < until:  # noqa: C419  all of them
        time.sleep(_PAUSE_SECONDS)


def cleans_up(pid: int) -> bool:
    """Whether it is one of Python's or torch's helpers that end by themselves when those that they serve have ended,
    and then free the shared memory that these have left."""
    with suppress(OSError):
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
        return b"multiprocessing.resource_tracker" in command or b"torch_shm_manager" in command
    return False


def _own_children() -> list[int]:
    found = _children(os.getpid())
    return found or [child.pid for child in psutil.Process().children()]


def _reaped(pid: int) -> bool:
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return True


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
