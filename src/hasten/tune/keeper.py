"""The process that arms are copied from, and the one that keeps each of them: what runs in them.

    who searches ── nursery ── keeper ── leader of an arm ── its loader workers and whatever else it starts
                        └───── keeper ── leader of the next arm ── …

The nursery has loaded torch, hasten and known libraries, and nothing of the user's: an arm is a copy of it, so that it
begins at once and inherits neither data nor settings. A keeper is the one that all processes of its arm fall to,
whatever they do to leave it (processes.py). It ends them, and deletes the arm's folder, when whoever searches says so
or is gone by whatever way, and ends itself only when none of them is left. Should a keeper be killed, its arm's leader
dies with it and all others fall to the nursery, which ends them.

All of them have sessions of their own: an interrupt from the keyboard reaches who searches, and nobody else. A wish for
an arm is one line of JSON with four descriptors (copied.py).

What gets away: what another service starts when asked (a container, a job of the system's own timer), what has changed
to another user's rights, and the folder and the descendants of an arm that has killed both its keeper and the nursery.
"""

from __future__ import annotations

import faulthandler
import importlib
import io
import json
import os
import selectors
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from tempfile import TemporaryDirectory
from typing import Any, NoReturn

from hasten.training.stacks import signal_to_ask_by
from hasten.tune.processes import (
    adopt_orphans,
    cleans_up,
    continue_below,
    die_with,
    end_descendants,
    wait_for_children,
    watch_over,
)
from hasten.tune.serve import serve

DESCRIPTORS = 4  # of a wish: the keeper's socket, the arm's line, where it prints, where it writes its stacks
LONGEST_WISH = 1 << 16
_CLEANING_SECONDS = 2.0  # that helpers have to free shared memory
_CHILD_ENDED, _STOP = "a child ended", "stop"


@dataclass(slots=True)
class _Ears:
    """Waits for what a nursery or a keeper has to react to. parent: a descriptor that tells that who searches ended."""

    parent: int | None
    _selector: selectors.BaseSelector = field(default_factory=selectors.DefaultSelector)
    _woken: tuple[socket.socket, socket.socket] = field(default_factory=socket.socketpair)

    def __post_init__(self) -> None:
        for end in self._woken:
            end.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)  # without a handler nothing wakes it
        signal.set_wakeup_fd(self._woken[1].fileno(), warn_on_full_buffer=False)
        self._selector.register(self._woken[0], selectors.EVENT_READ, _CHILD_ENDED)
        if self.parent is not None:
            self._selector.register(self.parent, selectors.EVENT_READ, _STOP)

    def listen_to(self, source: socket.socket) -> None:
        self._selector.register(source, selectors.EVENT_READ, source)

    def heard(self) -> list[Any]:
        found = [key.data for key, _ in self._selector.select()]
        with suppress(BlockingIOError):
            self._woken[0].recv(4096)
        return found

    def close(self) -> None:
        """In a copy of the process, which has signals of its own."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._selector.close()
        for end in self._woken:
            end.close()


def nurse(control: socket.socket, parent: int, libraries: Sequence[str]) -> NoReturn:
    """The life of the nursery. control: brings wishes, and says by its end that there will be none; parent: the number
    of the process that searches; libraries: to be loaded at once."""
    adopt_orphans()
    assert isinstance(sys.stdout, io.TextIOWrapper)
    sys.stdout.reconfigure(line_buffering=True)  # else what an arm has said is with it when it is stopped or killed
    ears = _Ears(watch_over(parent))
    if os.getppid() != parent:
        os._exit(0)
    _load(libraries)
    ears.listen_to(control)
    keepers: dict[int, TemporaryDirectory[str]] = {}
    while _STOP not in (heard := ears.heard()):
        if _CHILD_ENDED in heard:
            _take_leave(keepers)
        if control in heard and not _granted(control, ears, keepers):
            break
    end_descendants()
    for folder in keepers.values():
        folder.cleanup()
    os._exit(0)


def _load(libraries: Sequence[str]) -> None:
    for name in libraries:
        try:
            importlib.import_module(name)
        except BaseException as error:  # the arm will meet it again, and say it
            print(f"{name} was not loaded beforehand: {type(error).__name__}: {error}", file=sys.stderr)  # noqa: T201


def _take_leave(keepers: dict[int, TemporaryDirectory[str]], killed: int | None = None) -> None:
    """Of keepers that have ended, and of what a killed one has left behind. killed: is on its way, and waited for."""
    for pid in list(keepers):
        if os.waitpid(pid, 0 if pid == killed else os.WNOHANG)[0] == pid:
            folder = keepers.pop(pid)
            end_descendants(keepers.__contains__)
            folder.cleanup()


def _granted(control: socket.socket, ears: _Ears, keepers: dict[int, TemporaryDirectory[str]]) -> bool:
    """Read one wish and do it. False where there will be none any more."""
    text, descriptors, _, _ = socket.recv_fds(control, LONGEST_WISH, DESCRIPTORS)
    while text and not text.endswith(b"\n"):
        text += control.recv(LONGEST_WISH)
    if not text:
        return False
    wish = json.loads(text)
    if "killed" in wish:  # a question: is what this keeper has left behind gone?
        if wish["killed"] in keepers:
            _take_leave(keepers, wish["killed"])
        control.sendall(b"\n")
        return True
    _load(wish["libraries"])
    folder = TemporaryDirectory(prefix="hasten-arm-", dir=wish["place"], ignore_cleanup_errors=True)
    keeper = os.fork()
    if keeper == 0:
        _never_return(lambda: _keep(descriptors, folder, ears, control))
    keepers[keeper] = folder
    for descriptor in descriptors:
        os.close(descriptor)
    return True


def _keep(descriptors: list[int], folder: TemporaryDirectory[str], ears: _Ears, control: socket.socket) -> None:
    """The life of a keeper."""
    os.setsid()
    adopt_orphans()
    ears.close()
    control.close()
    life, me = socket.socket(fileno=descriptors[0]), os.getpid()
    leader = os.fork()
    if leader == 0:
        for unused in (descriptors[0], ears.parent):
            if unused is not None:
                os.close(unused)
        _never_return(lambda: _live(me, *descriptors[1:]))
    for descriptor in descriptors[1:]:
        os.close(descriptor)
    ears = _Ears(ears.parent)
    ears.listen_to(life)
    _say(life, keeper=me, leader=leader, folder=folder.name)
    leads = True
    while not {_STOP, life} & set(ears.heard()):
        if leads and (ended := os.waitpid(leader, os.WNOHANG))[0] == leader:
            leads = False
            _say(life, exit_code=os.waitstatus_to_exitcode(ended[1]))
    end_descendants(cleans_up)
    continue_below(me)
    wait_for_children(_CLEANING_SECONDS)
    end_descendants()
    folder.cleanup()
    _say(life, all_ended=True)


def _say(life: socket.socket, **fields: Any) -> None:
    with suppress(OSError):  # nobody listens any more
        life.sendall(json.dumps(fields).encode() + b"\n")


def _live(keeper: int, line: int, output: int, report: int) -> None:
    """The life of an arm's leader. Its first message says what it is a copy for."""
    os.setsid()
    die_with(keeper)
    for descriptor in (1, 2):
        os.dup2(output, descriptor)
    if (asked_by := signal_to_ask_by()) is not None:
        faulthandler.register(asked_by, file=report, all_threads=True)
    told_and_telling = socket.socket(fileno=line).makefile("rwb")
    told = json.loads(told_and_telling.readline())
    # They are those of the nursery, as they were when that one began.
    os.environ.clear()
    os.environ.update(told["environment"])
    sys.path[:], sys.argv[:] = told["path"], told["arguments"]
    sys.dont_write_bytecode = True  # beside the user's files
    if told["folder"] is not None:
        os.chdir(told["folder"])
    serve(told_and_telling, told["job"], told["plan"])


def _never_return(life: Callable[[], None]) -> NoReturn:
    """What a copy does not catch must not run on in the code of the process that it was copied from."""
    try:
        life()
        os._exit(0)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)
