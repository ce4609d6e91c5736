"""The process that arms are copied from, as who searches sees it.

It is a process of its own for each process that searches, begun when the first arm is wanted and ended when the last
`Arms` is gone. Several share it: loading torch takes seconds.

Where loading a library beforehand ends the nursery, as a broken one can, it is begun anew without any: then each arm
loads for itself, and fails alone.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import weakref
from collections.abc import Sequence
from contextlib import suppress

from hasten.tune.line import Tail

END_SECONDS = 10.0
LAST_WORDS = 500  # characters
# Of arms first, should the system have to end somebody for memory; from proc_pid_oom_score_adj(5).
_FIRST_VICTIM = '{ echo 1000 > /proc/self/oom_score_adj; } 2> /dev/null; exec "$@"'
_PROGRAM = (
    "import json, socket, sys; told = json.loads(sys.argv[1]); sys.path[:] = told['path']; "
    "from hasten.tune.keeper import nurse; "
    "nurse(socket.socket(fileno=told['control']), told['parent'], told['libraries'])"
)
# What torch and hasten load when a run is built.
_OURS = ("hasten.tune.serve", "torch._dynamo")


class Nursery:
    """Begun when made. `close` it, or let go of it."""

    def __init__(self) -> None:
        self._control, theirs = socket.socketpair()
        reading, writing = os.pipe()
        told = {"path": sys.path, "control": theirs.fileno(), "parent": os.getpid(), "libraries": _OURS}
        flags = [*("-O" for _ in range(sys.flags.optimize)), *(f"-W{option}" for option in sys.warnoptions)]
        self._process = subprocess.Popen(
            ["/bin/sh", "-c", _FIRST_VICTIM, "sh", sys.executable, *flags, "-c", _PROGRAM, json.dumps(told)],
            stdin=subprocess.DEVNULL,
            stdout=writing,
            stderr=writing,
            pass_fds=[theirs.fileno()],
            start_new_session=True,
        )
        theirs.close()
        os.close(writing)
        self._tail, self._lock, self._owner = Tail(reading), threading.Lock(), os.getpid()
        self.close = weakref.finalize(self, _end, self._process, self._control, self._tail, self._owner)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def lives(self) -> bool:
        """Whether it does, and is this process's own, not that of one that this is a copy of."""
        return self._owner == os.getpid() and self.close.alive and self._process.poll() is None

    @property
    def tails(self) -> list[Tail]:
        """What it prints, to be read now and then while something is waited for: none once it has ended."""
        return [] if self._tail.ended else [self._tail]

    def copy(self, libraries: Sequence[str], descriptors: Sequence[int]) -> None:
        """Begin an arm with these descriptors; keeper.py says which. Raises OSError where it has ended."""
        wish = json.dumps({"libraries": libraries, "place": tempfile.gettempdir()})
        with self._lock:
            socket.send_fds(self._control, [wish.encode() + b"\n"], descriptors)

    def wait_for_killed(self, keeper: int) -> bool:
        """Until nothing is left of what a killed keeper kept. False where the nursery has ended, and nobody knows."""
        with self._lock, suppress(OSError):
            self._control.settimeout(END_SECONDS)
            self._control.sendall(json.dumps({"killed": keeper}).encode() + b"\n")
            return self._control.recv(1) == b"\n"
        return False

    def end(self) -> str:
        """How it came to its end, and what it said last."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(END_SECONDS)
        self._tail.read()
        code, said = self._process.returncode, self._tail.text().strip()[-LAST_WORDS:]
        how = "closed what it is asked through" if code is None else how_it_ended(code)
        return f"{how}; it said: {said}" if said else how


def _end(process: subprocess.Popen[bytes], control: socket.socket, tail: Tail, owner: int) -> None:
    if os.getpid() != owner:  # a copy of the process that searches
        return
    with suppress(OSError):
        control.shutdown(socket.SHUT_RDWR)  # a copy of this process may hold it open
    control.close()
    process.terminate()  # it may still be loading; keepers, should there be any, end by themselves
    try:
        process.wait(END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    tail.close()


def how_it_ended(exit_code: int) -> str:
    """exit_code: below 0 the number of a signal."""
    if exit_code >= 0:
        return f"ended with exit code {exit_code}"
    try:
        return f"was killed by {signal.Signals(-exit_code).name}"
    except ValueError:
        return f"was killed by signal {-exit_code}"


_shared: weakref.ref[Nursery] | None = None


def nursery() -> Nursery:
    """The one that lives, or a new one."""
    global _shared
    found = None if _shared is None else _shared()
    if found is None or not found.lives:
        found = Nursery()
        _shared = weakref.ref(found)
    return found
