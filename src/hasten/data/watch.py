"""Worker processes under watch: one that dies is told of at once, one that hangs is asked where it stands and ended.

torch's DataLoader waits for ever for a worker that is stopped or runs in a circle. And when a worker dies, it raises
wherever the training process happens to be: in the middle of an optimizer's update, or in a line of the user's that has
nothing to do with it. So:

* A thread looks once a second, and at once when a worker ends. A batch costs one reading of the clock.
* The death of a worker is raised where a batch is asked for, and nowhere else. torch's handler of SIGCHLD is put behind
  one of ours for that. Where it says nothing of our workers, torch's goes on as before.
* When an answer takes longer than Patience allows, every worker is sent a signal upon which faulthandler writes the
  stacks of all its threads into a pipe, from C and without the interpreter's help, so that a circle in a library
  answers too. Then the workers are killed, and the training process is woken.

What was given up: a loader that is read in another thread than the main one is woken up to five seconds later, by
torch's own look at its workers. A worker that waits in the kernel for a dead disk cannot be ended by anybody.

Sources: https://docs.python.org/3/library/faulthandler.html and the notes on shutting down in torch's dataloader.py.
"""

from __future__ import annotations

import copy
import multiprocessing
import signal
import threading
import time
import traceback
import weakref
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from operator import sub
from pathlib import Path
from statistics import median
from types import FrameType, GeneratorType
from typing import Any

import psutil
import torch.multiprocessing

from hasten.checkpoint.segments import forget_processes, remove_segments
from hasten.checkpoint.temporary import process_folder
from hasten.data.left_workers import END_SECONDS, kill, kill_with
from hasten.data.threads import threads_resting
from hasten.data.worker_faults import Worker, ended, hung
from hasten.data.worker_stacks import Begin, ask, interrupts_held
from hasten.errors import HastenError
from hasten.facts.machine import free_shared_memory, killed_for_memory

HANG_SECONDS, HANG_BATCHES = 60.0, 20
LOOK_SECONDS = 1.0
RECENT_BATCHES = 64

_NO_MORE = object()

_CREWS: weakref.WeakSet[Crew] = weakref.WeakSet()
_previous: Any = None  # what handled SIGCHLD before us
_in_place = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Patience:
    """How long an answer may take: so many seconds, or so many times the usual time from one to the next. The first one
    may have to wait for processes to start."""

    seconds: float = HANG_SECONDS
    first_seconds: float = HANG_SECONDS
    batches: int = HANG_BATCHES

    def limit(self, usual_seconds: float) -> float:
        return max(self.seconds, self.batches * usual_seconds)


class _WorkerLost(BaseException):
    """Raised by the signal handler out of the wait for a batch; no `except Exception` may hold it up."""


@dataclass(kw_only=True, eq=False)
class _Round:
    """One epoch: what is due, and who waits for it."""

    first_takes: int
    asked: int = 0
    answered: int = 0
    all_asked: bool = False
    waiter: int | None = None  # the thread that waits for an answer
    arrivals: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT_BATCHES))  # by the monotonic clock
    looking: threading.Thread | None = None

    @property
    def due(self) -> bool:
        return not self.all_asked or self.asked > self.answered

    def usual_seconds(self) -> float:
        """From one answer to the next, the median of the recent ones."""
        arrivals = list(self.arrivals)
        return median(map(sub, arrivals[1:], arrivals)) if len(arrivals) > 1 else 0.0


@dataclass(kw_only=True, eq=False)
class Crew:
    """The worker processes of one feed, from their start to their end. They serve one iterator of answers at a time.

    what: what they read, for messages: "Job.train".
    """

    what: str
    workers: int
    ahead: int
    users_init: Callable[[int], None] | None = None
    patience: Patience = field(default_factory=Patience)

    def __post_init__(self) -> None:
        self.processes = list[Any]()  # of multiprocessing.Process
        kill_with(self, self.processes)
        self._memory_bytes = dict[int, int]()  # resident in each process, by its pid, when last looked at
        self._forks = multiprocessing.get_start_method() == "fork"
        self._killed_before = killed_for_memory()
        pipes = [multiprocessing.Pipe(duplex=False) for _ in range(self.workers)]
        self._reports, self._writers = [pipe[0] for pipe in pipes], [pipe[1] for pipe in pipes]
        self._stop_reader, self._stop_writer = multiprocessing.Pipe(duplex=False)
        self._round = _Round(first_takes=1, all_asked=True)
        self._serving: weakref.ref[Generator[Any, None, None]] | None = None
        self._served: weakref.ref[Any] | None = None  # the DataLoader's iterator
        self._hang: HastenError | None = None
        self._lost = False
        self._noted_in: Path | None = None  # where workers are noted that may leave shared memory behind

    # ── what the DataLoader is given ────────────────────────────────────────────────────────────────────────────────

    def context(self) -> Any:
        """A multiprocessing context as the process has it, that remembers the processes it makes."""
        present: Any = multiprocessing.get_context()
        context: Any = copy.copy(present)

        def remembered(*arguments: Any, **named: Any) -> BaseProcess:
            process = present.Process(*arguments, **named)
            self.processes.append(process)
            return process

        context.Process = remembered
        return context

    def begin(self) -> Callable[[int], None]:
        """A worker_init_fn."""
        if torch.multiprocessing.get_sharing_strategy() == "file_descriptor":  # else names last, and others use them
            self._noted_in = process_folder()
        return Begin(tuple(self._writers), self.users_init, self._noted_in)

    # ── waiting ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def answers(
        self, start: Callable[[Iterator[Any]], Iterator[Any]], requests: Iterable[Any], *, first_takes: int = 1
    ) -> Iterator[Any]:
        """What the workers answer to the requests.

        start: given the requests, as they are to be handed on, makes an iterator of answers; starts the workers where
            none are.
        first_takes: how many times longer than another the first answer may take.

        Raises OutOfMemory or DataFailed when a worker ended, Hang when no answer came, and what else went wrong.
        """
        serving = self._answers(start, requests, first_takes)
        self._serving = weakref.ref(serving)
        return serving

    def _answers(
        self, start: Callable[[Iterator[Any]], Iterator[Any]], requests: Iterable[Any], first_takes: int
    ) -> Generator[Any, None, None]:
        self._leave(self._round)
        now = self._round = _Round(first_takes=first_takes)
        _CREWS.add(self)
        iterator = following = None
        try:
            if self.processes:  # they stayed, and answer already when they are told of a new epoch
                self._look_after(now)
            forks = self._forks and not self.processes
            with threads_resting() if forks else nullcontext(), interrupts_held():
                iterator = self._while_waiting(now, partial(start, self._counted(now, requests)))
            del start
            self._began(iterator)
            if now.looking is None:
                self._look_after(now)  # not before: a process forks best with as few threads as can be
            following = partial(next, iterator, _NO_MORE)
            while (answer := self._while_waiting(now, following)) is not _NO_MORE:
                now.answered += 1
                now.arrivals.append(time.monotonic())
                yield answer
        finally:
            self._leave(now)
            # End the workers here. Kept alive by the traceback of an error, they would be ended by the garbage
            # collector, which first closes the queues that tell them to: five seconds for each worker.
            del iterator, following

    def end(self) -> None:
        """Nothing is left of the workers afterwards: no process, no pipe, no segment of shared memory."""
        serving = self._serving and self._serving()
        if isinstance(serving, GeneratorType) and not serving.gi_running:
            serving.close()  # torch's way to end its workers, which leaves no lock taken
        del serving
        self._leave(self._round)
        kill(self.processes)
        served = self._served and self._served()
        if served is None:
            _CREWS.discard(self)
        else:  # until it is gone, torch's handler may speak of these workers
            weakref.finalize(served, _CREWS.discard, self)
        for pipe in (*self._reports, *self._writers, self._stop_reader, self._stop_writer):
            pipe.close()
        if self._noted_in is not None:
            pids = {process.pid for process in self.processes if process.pid is not None}
            remove_segments(pids)
            forget_processes(self._noted_in, pids)

    @staticmethod
    def _counted(now: _Round, requests: Iterable[Any]) -> Iterator[Any]:
        for request in requests:
            now.asked += 1
            yield request
        now.all_asked = True

    def _while_waiting(self, now: _Round, call: Callable[[], Any]) -> Any:
        now.waiter = threading.get_ident()
        try:
            if self._lost:
                raise _WorkerLost
            return call()
        except BaseException as error:
            raised = error
        finally:
            now.waiter = None
            del call
        # The frames of torch hold its iterator. While it lives, so do its workers, and it must be the one to end them.
        _forget_frames(raised)
        if isinstance(raised, OSError | EOFError) and (begun := self._sentinels()):
            wait(begun, END_SECONDS)  # a worker's end of a pipe was closed: it is ending, if not ended
        fault = self._fault() if isinstance(raised, _WorkerLost | RuntimeError | OSError | EOFError) else None
        raise raised if fault is None else fault

    def _fault(self) -> HastenError | None:
        """Why no answer comes: workers that hung, or the first that ended; None when it is none of the workers."""
        if self._hang is not None:
            return self._hang
        ending = wait(self._sentinels(), 0)
        for worker, process in zip(self._crew(), self.processes, strict=True):
            if process.pid is not None and (process.exitcode is not None or process.sentinel in ending):
                process.join(END_SECONDS)  # its pipes close a moment before its exit code is there
                return ended(worker, process.exitcode, self._killed_before, killed_for_memory(), free_shared_memory())
        return None

    def _sentinels(self) -> list[Any]:
        return [process.sentinel for process in self.processes if process.pid is not None]

    def _crew(self) -> list[Worker]:
        return [
            Worker(
                what=self.what,
                number=number,
                workers=self.workers,
                ahead=self.ahead,
                pid=process.pid or 0,
                memory_bytes=self._memory_bytes.get(process.pid),
                answered=self._round.answered,
                forked=self._forks,
            )
            for number, process in enumerate(self.processes)
        ]

    def _began(self, iterator: Iterator[Any]) -> None:
        self._served = weakref.ref(iterator)
        for writer in self._writers:
            writer.close()  # the workers have them now
        _put_before_torchs_handler()

    def _leave(self, now: _Round) -> None:
        """From here on a worker may end."""
        now.all_asked, now.asked = True, now.answered
        if now.looking is not None:
            self._stop_writer.send(None)
            now.looking.join()
            now.looking = None

    # ── in the signal handler ───────────────────────────────────────────────────────────────────────────────────────

    def look_for_ended(self) -> None:
        """Raises in the wait for an answer, when the main thread is in it, and a worker has ended that owes one."""
        # Not by their exit codes: one that is read while another signal raises is lost.
        if self._lost or (self._round.due and wait(self._sentinels(), 0)):
            self.lose()

    def lose(self) -> None:
        """A worker has ended. Raises in the wait for an answer, when the main thread is in it and answers are due."""
        self._lost = self._lost or self._round.due
        if self._lost and self._round.waiter == threading.get_ident():
            self._round.waiter = None  # one raise is enough
            raise _WorkerLost

    def is_named(self, what: str) -> bool:
        """Whether torch's message speaks of one of these workers."""
        return any(f"(pid {process.pid})" in what for process in self.processes)

    # ── looking, in a thread ────────────────────────────────────────────────────────────────────────────────────────

    def _look_after(self, now: _Round) -> None:
        now.looking = threading.Thread(target=self._look, args=(now,), name="hasten-watch", daemon=True)
        now.looking.start()

    def _look(self, now: _Round) -> None:
        here = set(self._sentinels())
        look_seconds = min(LOOK_SECONDS, self.patience.seconds / 4)
        before, waited, answered = time.monotonic(), 0.0, 0
        while True:
            ready = wait([self._stop_reader, *here], look_seconds)
            if self._stop_reader in ready:
                self._stop_reader.recv()
                return
            if ready:
                here -= set(ready)
                if now.due:
                    self._lost = True
                    _wake(now.waiter)
                continue
            self._note_memory()
            # While this process is stopped, or its machine asleep, nobody looks, and nothing counts as waiting.
            time_now = time.monotonic()
            passed, before = min(time_now - before, 2 * look_seconds), time_now
            waited = waited + passed if now.waiter is not None and answered == now.answered else 0.0
            answered = now.answered
            if waited > self._limit(now):
                self._end_hung(waited)
                self._lost = True
                _wake(now.waiter)
                waited = 0.0

    def _limit(self, now: _Round) -> float:
        if now.answered:
            return self.patience.limit(now.usual_seconds())
        return self.patience.first_seconds * now.first_takes

    def _end_hung(self, waited_seconds: float) -> None:
        self._hang = hung(
            waited_seconds,
            [(worker, ask(worker.pid, report)) for worker, report in zip(self._crew(), self._reports, strict=True)],
        )
        for process in self.processes:
            process.kill()

    def _note_memory(self) -> None:
        for process in self.processes:
            with suppress(psutil.Error):  # it has just ended
                if held := psutil.Process(process.pid).memory_info().rss:  # one that has just ended holds nothing
                    self._memory_bytes[process.pid] = held


def _forget_frames(error: BaseException) -> None:
    """Let go of what the frames hold through which the error came, but for those that still run."""
    following: BaseException | None = error
    while following is not None:
        traceback.clear_frames(following.__traceback__)
        following = following.__context__


def _wake(waiter: int | None) -> None:
    """Out of the wait for an answer. A reader in another thread sees what happened when torch looks after it."""
    if waiter is not None and waiter == threading.main_thread().ident:
        signal.pthread_kill(waiter, signal.SIGCHLD)


def _on_child_ended(signum: int, frame: FrameType | None) -> None:
    crews = list(_CREWS)
    for crew in crews:
        crew.look_for_ended()
    told = callable(_previous)
    while told:
        told = False
        try:
            _previous(signum, frame)
        except RuntimeError as error:
            # torch's handler tells of the workers of one loader at a time, and only once of each. Ours are watched.
            named = [crew for crew in crews if crew.is_named(str(error))]
            if not named:
                raise
            told = True
            for crew in named:
                crew.lose()


def _put_before_torchs_handler() -> None:
    """Once in a process, and after torch's own handler is there: its first worker brings it."""
    global _previous, _in_place
    if _in_place or threading.current_thread() is not threading.main_thread():
        return
    _previous, _in_place = signal.signal(signal.SIGCHLD, _on_child_ended), True
